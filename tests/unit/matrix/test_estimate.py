"""Estimated time of a plan."""

from __future__ import annotations

from tests.matrices import CPU, expanded, read

from stepscope.matrix.estimate import PlanEstimate, estimate_plan, group_cells
from stepscope.matrix.expand import PlannedCell

TEXT = "axes: {strategy: [naive, ddp], world_size: [1, 2]}"
S = 1_000_000_000


def estimated(text: str, *changes: str, **options: object) -> PlanEstimate:
    matrix = read(text, *changes)
    cells = expanded(matrix, machine=CPU, digest_of=lambda key, _: key)
    groups = group_cells((c.spec for c in cells), usable_cores=lambda _: CPU.usable_cores)
    planned: dict[str, PlannedCell] = {c.spec.cell_id: c for c in cells}
    return estimate_plan(groups, planned, measure=matrix.measure, usable_cores=CPU.usable_cores, **options)  # type: ignore[arg-type]


def test_the_total_is_start_up_and_cells() -> None:
    found = estimated(TEXT, "base.steps=auto", "measure.budget_s=7")
    assert found.total_ns == found.startup_ns + sum(c.duration_ns for c in found.cells)
    assert found.upper_bound
    assert {c.basis for c in found.cells} == {"budget"}
    assert all(7 * S <= c.duration_ns <= 12 * S for c in found.cells)


def test_more_rounds_take_longer() -> None:
    one = estimated(TEXT, "base.steps=auto")
    two = estimated(TEXT, "base.steps=auto", "measure.rounds=2")
    assert two.total_ns > one.total_ns


def test_no_cell_takes_longer_than_its_deadline() -> None:
    found = estimated(TEXT, "base.steps=100000000", "measure.timeout_s=5")
    assert {(c.duration_ns, c.basis) for c in found.cells} == {(5 * S, "deadline")}


def test_epochs_count_by_the_samples_of_the_dataset() -> None:
    found = estimated(TEXT, "base.epochs=2")
    assert {c.basis for c in found.cells} == {"arithmetic"}


def test_cells_measured_before_count_with_the_time_they_took() -> None:
    first = estimated(TEXT)
    known = {c.cell_id: 2 * S for c in first.cells[:3]}
    found = estimated(TEXT, known_ns=known)
    assert [c.basis for c in found.cells] == ["measured"] * 3 + ["arithmetic"]
    assert found.upper_bound
    known |= {first.cells[3].cell_id: S}
    assert not estimated(TEXT, known_ns=known).upper_bound


def test_larger_models_and_more_ranks_on_the_same_cores_take_longer() -> None:
    small = estimated(TEXT)
    large = estimated(TEXT, "base.model.width=512", "base.micro_batch=256")
    assert all(b.duration_ns > a.duration_ns for a, b in zip(small.cells, large.cells, strict=True))
    one_rank, two_ranks = large.cells[0], large.cells[2]
    assert two_ranks.duration_ns > one_rank.duration_ns


def test_nothing_to_run_takes_no_time() -> None:
    found = estimate_plan((), {}, measure=read(TEXT).measure, usable_cores=2)
    assert (found.total_ns, found.upper_bound) == (0, False)
