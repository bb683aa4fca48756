"""What a runner must know of a kind of cells: how they are prepared, sent to ranks, and judged when ranks are through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepscope.core.errors import StepscopeError
from stepscope.records.cell import Cell
from stepscope.records.run import Status
from stepscope.store.layout import RunLayout

if TYPE_CHECKING:
    from stepscope.matrix.runner import RunRequest


class PlannedWork(Protocol):
    """A cell of any kind before it runs. unsupported, skipped: why it does not."""

    @property
    def spec(self) -> Cell: ...

    @property
    def unsupported(self) -> str | None: ...

    @property
    def skipped(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Status of a cell that every rank has finished. A result can still be void (wrong, diverged)."""

    status: Status
    phase: str | None = None
    reason: str | None = None
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKind:
    """One kind of cells.

    unusable(request, cells, announce): cell id -> why it cannot run, found before any rank starts.
    group_fields(request, cells): the fields of GroupSpec that carry these cells.
    conclude(layout, cell): the status of a cell that every rank has finished.
    larger(failed, waiting): cell id -> why it need not be tried after ``failed`` ran out of memory.
    """

    name: Literal["bench", "comm"]
    unusable: Callable[[RunRequest, Iterable[Cell], Callable[[str], None]], Mapping[str, StepscopeError]]
    group_fields: Callable[[RunRequest, tuple[Cell, ...]], Mapping[str, Any]]
    conclude: Callable[[RunLayout, Cell], Conclusion]
    larger: Callable[[PlannedWork, Iterable[PlannedWork]], Mapping[str, str]]
