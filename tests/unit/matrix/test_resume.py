"""Resuming, and the out-of-memory backstop."""

from __future__ import annotations

from typing import get_args

import pytest
from tests.matrices import GPUS, plan

from stepscope.core.errors import UsageError
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.resume import Resume, backstop, cells_to_rerun, needs_at_least, plan_resume
from stepscope.records.cell import CellStatus
from stepscope.records.nouns import Status

TWO = "axes: {strategy: [naive, ddp], world_size: [2]}"


def resumed(status: Status, *, reason: str | None = None, rerun: tuple[str, ...] = ()) -> Resume[PlannedCell]:
    cells = plan(TWO)
    left = CellStatus(cell_id=cells[0].spec.cell_id, status=status, reason=reason)
    statuses = {left.cell_id: left, "gone-x": left}
    again = cells_to_rerun(rerun, cells, statuses, frozenset)
    return plan_resume(cells, {cell_id: status for cell_id, status in statuses.items() if cell_id not in again})


def test_results_are_kept_and_what_failed_by_accident_or_is_asked_for_runs_again() -> None:
    found = resumed("ok")
    assert [[c.spec.strategy for c in cells] for cells in (found.kept, found.run)] == [["naive"], ["ddp"]]
    runs_again = {status for status in get_args(Status) if len(resumed(status).run) == 2}
    kept = {status for status in get_args(Status) if len(resumed(status).kept) == 1}
    assert runs_again >= {"error", "killed", "timeout", "interrupted"}
    assert kept >= {"ok", "oom", "host_oom"}
    assert runs_again | kept == set(get_args(Status)), "every status is decided"
    assert {status for status in ("ok", "oom", "host_oom") if resumed(status, rerun=("failed",)).kept} == {"ok"}


def test_what_failed_before_runs_last() -> None:
    order = {
        status: [c.spec.strategy for c in resumed(status).run]
        for status in ("error", "interrupted", "killed", "timeout")
    }
    last = ["ddp", "naive"]
    assert order == {"error": last, "interrupted": ["naive", "ddp"], "killed": last, "timeout": last}


def test_a_cell_skipped_after_an_oom_stays_skipped_until_asked() -> None:
    reason = "oom_backstop of net-x"
    assert len(resumed("skipped", reason=reason).kept) == 1
    assert len(resumed("skipped", reason=reason, rerun=("failed",)).run) == 2


def test_chosen_cells_run_once_more_by_id_by_a_part_of_it_or_as_baselines() -> None:
    cells = plan("axes: {strategy: [single, ddp], world_size: [1, 2]}\nexclude: [{strategy: single, world_size: 2}]")
    statuses = {c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="ok") for c in cells}
    ids = {(c.spec.strategy, c.spec.world_size): c.spec.cell_id for c in cells}
    two = ids["ddp", 2]

    def chosen(word: str) -> frozenset[str]:
        return cells_to_rerun([word], cells, statuses, lambda: {ids["single", 1], "gone-x"})

    assert chosen(two) == chosen(two[:-2]) == {two}
    assert chosen("baseline") == {ids["single", 1]}
    assert chosen("failed") == frozenset()
    assert cells_to_rerun([two, "baseline"], cells, {}, frozenset) == frozenset()  # they run anyway
    with pytest.raises(UsageError, match="no cell of this matrix is a baseline"):
        cells_to_rerun(["baseline"], cells, statuses, frozenset)
    for word, said in (("nosuch", "nosuch"), (two[:2], f"names {len(ids)} cells")):
        with pytest.raises(UsageError, match=said):
            chosen(word)


def test_an_unsupported_cell_runs_once_the_machine_can() -> None:
    cells = plan("axes: {strategy: [ddp], world_size: [4, 8]}", machine=GPUS)
    statuses = {c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="unsupported") for c in cells}
    found = plan_resume(cells, statuses)
    assert [c.spec.world_size for c in found.run] == [4]
    assert [c.spec.world_size for c in found.kept] == [8]
    fresh = plan_resume(cells, {})
    assert [c.spec.world_size for c in fresh.unsupported] == [8]


def test_cells_with_the_same_buckets_are_recorded_and_not_run() -> None:
    cells = plan("axes: {strategy: [ddp], world_size: [2], strategy_options.bucket_cap_mb: [8, 25]}")
    found = plan_resume(cells, {})
    assert (len(found.run), len(found.skipped)) == (1, 1)
    reason = found.skipped[0].skipped
    statuses = {
        c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="skipped", reason=reason) for c in found.skipped
    }
    assert len(plan_resume(cells, statuses).kept) == 1
    each = plan(
        "axes: {strategy: [ddp], world_size: [2], strategy_options.bucket_cap_mb: [8, 25]}", "equal_buckets=each"
    )
    assert len(plan_resume(each, statuses).run) == 2  # now they are wanted


GROWING = "axes: {strategy: [ddp], world_size: [2], model.width: [8, 16, 32], micro_batch: [4, 8]}"


def test_after_an_oom_only_cells_that_need_more_are_skipped() -> None:
    cells = plan(GROWING, "base.global_batch=null")
    failed = next(c for c in cells if c.spec.model["width"] == 16 and c.spec.micro_batch == 4)
    found = backstop(failed, cells)
    skipped = {(c.spec.model["width"], c.spec.micro_batch) for c in cells if c.spec.cell_id in found}
    assert skipped == {(16, 8), (32, 4), (32, 8)}
    assert set(found.values()) == {f"oom_backstop of {failed.spec.cell_id}"}


ONE = "axes: {strategy: [ddp], world_size: [2]}"


@pytest.mark.parametrize(
    ("before", "change", "skipped"),
    [
        *(((), (change,), True) for change in (
            "base.seed=2", "base.lr=0.5", "base.momentum=0.9", "base.optimizer=adam", "base.model.depth=5",
            "base.global_batch=96")),
        *(((), (change,), False) for change in (
            "base.model.depth=3", "base.precision=bf16", "base.global_batch=24", "axes.world_size=[3]",
            "axes.strategy=[naive]", "base.strategy_options.static_graph=true", "base.env.A=1", "base.num_workers=2",
            "base.accumulation=2")),
        (("base.optimizer=adam",), ("base.momentum=0.9",), False),  # less optimizer state
        (("base.model.size=base",), ("base.model.size=large", "base.model.width=9"), True),  # its facts count
        (("base.model.size=base",), ("base.model.size=large", "base.model.width=7"), False),
    ],
)  # fmt: skip
def test_what_is_not_provably_larger_is_tried(before: tuple[str, ...], change: tuple[str, ...], skipped: bool) -> None:
    (failed,), (other,) = plan(ONE, *before), plan(ONE, *change)
    assert needs_at_least(other, failed) is skipped
