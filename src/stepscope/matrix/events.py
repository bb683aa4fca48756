"""What happens during a run, as data; the command line turns it into a live table or log lines."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.records.cell import Cell
from stepscope.records.run import CellStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """remeasured: of the cells to run, those that have a result and run for their traces. rerun: those of --rerun."""

    run_dir: str
    cells: tuple[Cell, ...]
    kept: tuple[CellStatus, ...]
    to_run: int
    remeasured: int = 0
    rerun: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStarted:
    """The arrays of a data set are being made, once for all cells that train on them."""

    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    group_id: str
    world_size: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMoved:
    """A cell entered another phase, or got further in it. size_bytes: that a sweep is at."""

    cell: Cell
    phase: str
    step: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded:
    cell: Cell
    status: CellStatus


Event = RunStarted | DataStarted | GroupStarted | CellMoved | CellEnded
