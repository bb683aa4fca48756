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

    world_size: int
    backend: Backend
    device: Device
    threads_per_rank: int
    env: Mapping[str, str]
    network: str | None
    cells: tuple[Cell, ...]


def group_cells(cells: Iterable[Cell], *, usable_cores: int, isolate: bool = False) -> tuple[WorkerGroup, ...]:
    """One group per (world size, backend, device, threads, swept environment, network), in order of first appearance.

    isolate: a group for each cell.
    """
    members: dict[tuple[object, ...], list[Cell]] = {}
    for index, cell in enumerate(cells):
        env = tuple(sorted(cell.env.items()))
        threads = _threads(cell, usable_cores)
        alone = index if isolate else None
        key = (cell.world_size, cell.backend, cell.device, threads, env, cell.network, alone)
        members.setdefault(key, []).append(cell)
    return tuple(
        WorkerGroup(
            world_size=found[0].world_size,
            backend=found[0].backend,
            device=found[0].device,
            threads_per_rank=_threads(found[0], usable_cores),
            env=dict(found[0].env),
            network=found[0].network,
            cells=tuple(found),
        )
        for found in members.values()
    )


def _threads(cell: Cell, usable_cores: int) -> int:
    return threads_per_rank(cell.threads_per_rank, usable_cores=usable_cores, world_size=cell.world_size)
