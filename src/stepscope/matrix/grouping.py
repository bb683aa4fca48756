"""Worker groups: cells that one set of worker processes can run one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepscope.matrix.machine import Backend, Device, threads_per_rank
from stepscope.records.cell import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Cells in order, and what their processes have in common.

    env: the swept environment variables of these cells, to be laid over ``launch.env``.
    """

    group_id: str
    world_size: int
    backend: Backend
    device: Device
    threads_per_rank: int
    env: Mapping[str, str]
    network: str | None
    cells: tuple[Cell, ...]


def group_cells(
    cells: Iterable[Cell], *, usable_cores: int, isolate: bool = False, first_number: int = 1
) -> tuple[WorkerGroup, ...]:
    """One group per (world size, backend, device, threads, swept environment, network), in order of first appearance.

    isolate: a group for each cell. first_number: of the first group's id (``001-w2-gloo``); a run that already has
    groups goes on counting.
    """
    members: dict[tuple[object, ...], list[Cell]] = {}
    for index, cell in enumerate(cells):
        env = tuple(sorted(cell.env.items()))
        threads = _threads(cell, usable_cores)
        alone = index if isolate else None
        key = (cell.world_size, cell.backend, cell.device, threads, env, cell.network, alone)
        members.setdefault(key, []).append(cell)
    return tuple(
        _group(tuple(found), number, usable_cores) for number, found in enumerate(members.values(), start=first_number)
    )


def _group(cells: tuple[Cell, ...], number: int, usable_cores: int) -> WorkerGroup:
    head = cells[0]
    return WorkerGroup(
        group_id=f"{number:03d}-w{head.world_size}-{head.backend}",
        world_size=head.world_size,
        backend=head.backend,
        device=head.device,
        threads_per_rank=_threads(head, usable_cores),
        env=dict(head.env),
        network=head.network,
        cells=cells,
    )


def _threads(cell: Cell, usable_cores: int) -> int:
    return threads_per_rank(cell.threads_per_rank, usable_cores=usable_cores, world_size=cell.world_size)
