"""What happens during a run, as data; the command line turns it into a live table or log lines."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.records.cell import CellSpec
from stepscope.records.run import CellStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    run_dir: str
    cells: tuple[CellSpec, ...]
    kept: tuple[CellStatus, ...]
    to_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    group_id: str
    world_size: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMoved:
    """A cell entered another phase, or got further in it."""

    cell: CellSpec
    phase: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded:
    cell: CellSpec
    status: CellStatus


Event = RunStarted | GroupStarted | CellMoved | CellEnded
