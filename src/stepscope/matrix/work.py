"""What a runner is asked (cells, their kind, folders) and what it tells while it runs (events, as data)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, Protocol

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.launch.hosts.survey import HostWorld
from stepscope.records.cell import Cell, CellStatus, MeasureSettings
from stepscope.records.comm import CommMeasure
from stepscope.records.environment import EnvironmentRecord
from stepscope.store.layout import RunLayout


class PlannedWork(Protocol):
    """A cell of any kind before it runs. unsupported, skipped: why it does not. sections: of its matrix."""

    @property
    def spec(self) -> Cell: ...

    @property
    def unsupported(self) -> str | None: ...

    @property
    def skipped(self) -> str | None: ...

    @property
    def sections(self) -> tuple[str, ...]: ...


@record
class CellKind:
    """One kind of cells.

    group_fields(request, cells): the fields of GroupSpec that carry these cells.
    conclude(layout, cell): of a cell that every rank has finished; its result can still be void (wrong, diverged).
    unusable(request, cells, announce): cell id -> why it cannot run, found before any rank starts.
    larger(failed, waiting): cell id -> why it need not be tried after ``failed`` ran out of memory.
    """

    name: Literal["bench", "comm"]
    group_fields: Callable[[RunRequest, tuple[Cell, ...]], Mapping[str, Any]]
    conclude: Callable[[RunLayout, Cell], CellStatus]
    unusable: Callable[[RunRequest, Iterable[Cell], Callable[[str], None]], Mapping[str, StepscopeError]] = lambda *_: {}
    larger: Callable[[PlannedWork, Iterable[PlannedWork]], Mapping[str, str]] = lambda *_: {}


@record
class RunRequest:
    """Everything a run needs to know. ``matrix`` is the resolved file, saved with the run."""

    layout: RunLayout
    name: str
    matrix: Mapping[str, Any]
    cells: tuple[PlannedWork, ...]
    measure: MeasureSettings
    usable_cores: int
    argv: tuple[str, ...]
    cache_dir: Path
    env: Mapping[str, str]
    environment: EnvironmentRecord
    kind: CellKind
    others: tuple[PlannedWork, ...] = ()  # of the same matrix, not asked for now: their results stay
    isolate: bool = False
    hosts: HostWorld | None = None  # where the ranks run, of --hosts
    joined: str | None = None  # id of the group when the ranks exist already (launch/join.py)
    rerun: tuple[str, ...] = ()  # cells that are measured once more (resume.cells_to_rerun)
    force: bool = False  # resume although the machine or torch is another one
    data_dir: Path | None = None
    tensorboard_dir: Path | None = None
    comm_measure: CommMeasure = field(default_factory=CommMeasure)


@record
class RunStarted:
    """The run begins. remeasured: of the cells to run, those that have a result and run for their traces. rerun: those of
    --rerun."""

    run_dir: str
    cells: tuple[Cell, ...]
    kept: tuple[CellStatus, ...]
    to_run: int
    remeasured: int = 0
    rerun: int = 0


@record
class DataStarted:
    """The arrays of a data set are being made, once for all cells that train on them."""

    dataset: str


@record
class GroupStarted:
    group_id: str
    world_size: int
    cells: int


@record
class CellMoved:
    """A cell entered another phase, or got further in it. size_bytes: that a sweep is at."""

    cell: Cell
    phase: str
    step: int
    size_bytes: int | None = None


@record
class CellEnded:
    cell: Cell
    status: CellStatus


Event = RunStarted | DataStarted | GroupStarted | CellMoved | CellEnded
