"""Estimated time of a plan."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.matrix.checked import Matrix
from stepscope.matrix.estimate import PlanEstimate, estimate_plan, group_cells
from stepscope.matrix.expand import PlannedCell, expand
from stepscope.matrix.machine import Machine

Read = Callable[..., Matrix]
TEXT = "axes: {strategy: [naive, ddp], world_size: [1, 2]}"
S = 1_000_000_000


def estimated(read: Matrix, machine: Machine, catalog: object, **options: object) -> PlanEstimate:
    cells = expand(read, machine=machine, digest_of=lambda key, _: key, catalog=catalog)  # type: ignore[arg-type]
    groups = group_cells((c.spec for c in cells), usable_cores=machine.usable_cores)
    planned: dict[str, PlannedCell] = {c.spec.cell_id: c for c in cells}
    return estimate_plan(groups, planned, measure=read.measure, usable_cores=machine.usable_cores, **options)  # type: ignore[arg-type]


def test_the_total_is_start_up_and_cells(matrix: Read, cpu: Machine, catalog: object) -> None:
    found = estimated(matrix(TEXT, "base.steps=auto", "measure.budget_s=7"), cpu, catalog)
    assert found.total_ns == found.startup_ns + sum(c.duration_ns for c in found.cells)
    assert found.upper_bound
    assert {c.basis for c in found.cells} == {"budget"}
    assert all(7 * S <= c.duration_ns <= 12 * S for c in found.cells)


def test_more_rounds_take_longer(matrix: Read, cpu: Machine, catalog: object) -> None:
    one = estimated(matrix(TEXT, "base.steps=auto"), cpu, catalog)
    two = estimated(matrix(TEXT, "base.steps=auto", "measure.rounds=2"), cpu, catalog)
    assert two.total_ns > one.total_ns


def test_no_cell_takes_longer_than_its_deadline(matrix: Read, cpu: Machine, catalog: object) -> None:
    found = estimated(matrix(TEXT, "base.steps=100000000", "measure.timeout_s=5"), cpu, catalog)
    assert {(c.duration_ns, c.basis) for c in found.cells} == {(5 * S, "deadline")}


def test_epochs_without_a_number_of_samples_may_take_the_whole_deadline(
    matrix: Read, cpu: Machine, catalog: object
) -> None:
    known = estimated(matrix(TEXT, "base.epochs=2"), cpu, catalog)
    assert {c.basis for c in known.cells} == {"arithmetic"}  # from dataset_options.samples


def test_cells_measured_before_count_with_the_time_they_took(matrix: Read, cpu: Machine, catalog: object) -> None:
    read = matrix(TEXT)
    first = estimated(read, cpu, catalog)
    known = {c.cell_id: 2 * S for c in first.cells[:3]}
    found = estimated(read, cpu, catalog, known_ns=known)
    assert [c.basis for c in found.cells] == ["measured"] * 3 + ["arithmetic"]
    assert found.upper_bound
    known |= {first.cells[3].cell_id: S}
    assert not estimated(read, cpu, catalog, known_ns=known).upper_bound


def test_larger_models_and_more_ranks_on_the_same_cores_take_longer(
    matrix: Read, cpu: Machine, catalog: object
) -> None:
    small = estimated(matrix(TEXT), cpu, catalog)
    large = estimated(matrix(TEXT, "base.model.width=512", "base.micro_batch=256"), cpu, catalog)
    assert all(b.duration_ns > a.duration_ns for a, b in zip(small.cells, large.cells, strict=True))
    one_rank, two_ranks = large.cells[0], large.cells[2]
    assert two_ranks.duration_ns > one_rank.duration_ns


def test_nothing_to_run_takes_no_time(matrix: Read) -> None:
    found = estimate_plan((), {}, measure=matrix(TEXT).measure, usable_cores=2)
    assert (found.total_ns, found.upper_bound) == (0, False)
