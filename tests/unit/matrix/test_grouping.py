"""Worker groups."""

from __future__ import annotations

from tests.matrices import plan

from stepscope.matrix.estimate import WorkerGroup, group_cells
from stepscope.matrix.expand import PlannedCell


def groups(cells: tuple[PlannedCell, ...], **options: object) -> tuple[WorkerGroup, ...]:
    return group_cells((c.spec for c in cells), usable_cores=lambda _: 4, **options)  # type: ignore[arg-type]


def test_cells_of_one_world_share_their_processes() -> None:
    found = groups(plan("axes: {strategy: [naive, ddp], world_size: [2, 1, 8]}"))
    assert [(g.backend, g.world_size, g.threads_per_rank, len(g.cells)) for g in found] == [
        ("gloo", 1, 4, 2),
        ("gloo", 2, 2, 2),
        ("gloo", 8, 1, 2),
    ]


def test_a_swept_environment_variable_needs_processes_of_its_own() -> None:
    found = groups(plan("axes: {strategy: [naive, ddp], world_size: [2], env.GLOO_X: [a, b]}"))
    assert [(dict(g.env), [c.strategy for c in g.cells]) for g in found] == [
        ({"GLOO_X": "a"}, ["naive", "ddp"]),
        ({"GLOO_X": "b"}, ["naive", "ddp"]),
    ]


def test_threads_as_asked_are_kept() -> None:
    (found,) = groups(plan("axes: {strategy: [ddp], world_size: [2]}", "launch.threads_per_rank=3"))
    assert found.threads_per_rank == 3


def test_isolation_gives_each_cell_its_own_group() -> None:
    found = groups(plan("axes: {strategy: [naive, ddp], world_size: [2]}"), isolate=True)
    assert [len(g.cells) for g in found] == [1, 1]


def test_no_cells_are_no_groups() -> None:
    assert groups(()) == ()
