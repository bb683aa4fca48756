"""Resuming, and the out-of-memory backstop."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from stepscope.core.errors import UsageError
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.machine import Machine
from stepscope.matrix.resume import Resume, backstop, cells_to_rerun, needs_at_least, plan_resume
from stepscope.records.cell import CellStatus
from stepscope.records.nouns import Status

Plan = Callable[..., tuple[PlannedCell, ...]]

TWO = "axes: {strategy: [naive, ddp], world_size: [2]}"


def resumed(
    plan: Plan, status: Status, *, reason: str | None = None, rerun: tuple[str, ...] = ()
) -> Resume[PlannedCell]:
    cells = plan(TWO)
    left = CellStatus(cell_id=cells[0].spec.cell_id, status=status, reason=reason)
    statuses = {left.cell_id: left, "gone-x": left}
    again = cells_to_rerun(rerun, cells, statuses, frozenset)
    return plan_resume(cells, {cell_id: status for cell_id, status in statuses.items() if cell_id not in again})


@pytest.mark.parametrize("status", ["ok", "oom", "host_oom"])
def test_results_are_kept(plan: Plan, status: Status) -> None:
    found = resumed(plan, status)
    assert [c.spec.strategy for c in found.kept] == ["naive"]
    assert [c.spec.strategy for c in found.run] == ["ddp"]


@pytest.mark.parametrize("status", ["error", "killed", "timeout", "interrupted"])
def test_what_failed_by_accident_runs_again(plan: Plan, status: Status) -> None:
    assert len(resumed(plan, status).run) == 2


@pytest.mark.parametrize("status", ["oom", "host_oom"])
def test_memory_is_tried_again_only_when_asked(plan: Plan, status: Status) -> None:
    assert len(resumed(plan, status, rerun=("failed",)).run) == 2
    assert len(resumed(plan, "ok", rerun=("failed",)).kept) == 1


def test_a_cell_skipped_after_an_oom_stays_skipped_until_asked(plan: Plan) -> None:
    reason = "oom_backstop of net-x"
    assert len(resumed(plan, "skipped", reason=reason).kept) == 1
    assert len(resumed(plan, "skipped", reason=reason, rerun=("failed",)).run) == 2


def test_chosen_cells_run_once_more_by_id_by_a_part_of_it_or_as_baselines(plan: Plan) -> None:
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


def test_every_status_is_decided(plan: Plan) -> None:
    for status in get_args(Status):
        found = resumed(plan, status)
        assert len(found.run) + len(found.kept) == 2


def test_an_unsupported_cell_runs_once_the_machine_can(plan: Plan, gpus: Machine) -> None:
    cells = plan("axes: {strategy: [ddp], world_size: [4, 8]}", machine=gpus)
    statuses = {c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="unsupported") for c in cells}
    found = plan_resume(cells, statuses)
    assert [c.spec.world_size for c in found.run] == [4]
    assert [c.spec.world_size for c in found.kept] == [8]
    fresh = plan_resume(cells, {})
    assert [c.spec.world_size for c in fresh.unsupported] == [8]


def test_cells_with_the_same_buckets_are_recorded_and_not_run(plan: Plan) -> None:
    cells = plan("axes: {strategy: [ddp], world_size: [2], strategy_options.bucket_cap_mb: [8, 25]}")
    found = plan_resume(cells, {})
    assert (len(found.run), len(found.skipped)) == (1, 1)
    reason = found.skipped[0].skipped
    statuses = {
        c.spec.cell_id: CellStatus(cell_id=c.spec.cell_id, status="skipped", reason=reason) for c in found.skipped
    }
    assert len(plan_resume(cells, statuses).kept) == 1
    each = plan(
        "axes: {strategy: [ddp], world_size: [2], strategy_options.bucket_cap_mb: [8, 25]}",
        "equal_buckets=each",
    )
    assert len(plan_resume(each, statuses).run) == 2  # now they are wanted


GROWING = "axes: {strategy: [ddp], world_size: [2], model.width: [8, 16, 32], micro_batch: [4, 8]}"


def test_after_an_oom_only_cells_that_need_more_are_skipped(plan: Plan) -> None:
    cells = plan(GROWING, "base.global_batch=null")
    failed = next(c for c in cells if c.spec.model["width"] == 16 and c.spec.micro_batch == 4)
    found = backstop(failed, cells)
    skipped = {(c.spec.model["width"], c.spec.micro_batch) for c in cells if c.spec.cell_id in found}
    assert skipped == {(16, 8), (32, 4), (32, 8)}
    assert set(found.values()) == {f"oom_backstop of {failed.spec.cell_id}"}


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        ("base.seed=2", True),
        ("base.lr=0.5", True),
        ("base.momentum=0.9", True),
        ("base.optimizer=adam", True),
        ("base.model.depth=5", True),
        ("base.model.depth=3", False),
        ("base.precision=bf16", False),
        ("base.global_batch=96", True),
        ("base.global_batch=24", False),
        ("axes.world_size=[3]", False),
        ("axes.strategy=[naive]", False),
        ("base.strategy_options.static_graph=true", False),
        ("base.env.A=1", False),
        ("base.num_workers=2", False),
        ("base.accumulation=2", False),
    ],
)
def test_what_is_not_provably_larger_is_tried(plan: Plan, change: str, skipped: bool) -> None:
    (failed,) = plan("axes: {strategy: [ddp], world_size: [2]}")
    (other,) = plan("axes: {strategy: [ddp], world_size: [2]}", change)
    assert needs_at_least(other, failed) is skipped


def test_less_optimizer_state_is_tried(plan: Plan) -> None:
    (failed,) = plan("axes: {strategy: [ddp], world_size: [2]}", "base.optimizer=adam")
    (other,) = plan("axes: {strategy: [ddp], world_size: [2]}", "base.momentum=0.9")
    assert not needs_at_least(other, failed)


def test_a_named_size_counts_by_its_facts(plan: Plan) -> None:
    text = "axes: {strategy: [ddp], world_size: [2]}"
    (failed,) = plan(text, "base.model.size=base")
    (larger,) = plan(text, "base.model.size=large", "base.model.width=9")
    (smaller,) = plan(text, "base.model.size=large", "base.model.width=7")
    assert needs_at_least(larger, failed)
    assert not needs_at_least(smaller, failed)
