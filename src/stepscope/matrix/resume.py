"""Resuming: which cells of a plan still have to run, given what an earlier attempt left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stepscope.matrix.backstop import BACKSTOP
from stepscope.matrix.cell_kind import PlannedWork
from stepscope.records.run import CellStatus, Status

P = TypeVar("P", bound=PlannedWork)

FINAL: frozenset[Status] = frozenset({"ok", "oom", "host_oom", "unsupported", "skipped"})
"""Results: a cell that has one is not run again. An out-of-memory is a result."""

MEMORY: frozenset[Status] = frozenset({"oom", "host_oom"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Generic[P]):
    """Cells of a plan, by what is to be done with them; every planned cell is in exactly one.

    run: to start. kept: have a result already. unsupported, skipped: to be recorded as such without running.
    """

    run: tuple[P, ...]
    kept: tuple[P, ...]
    unsupported: tuple[P, ...]
    skipped: tuple[P, ...]


def plan_resume(cells: Iterable[P], statuses: Mapping[str, CellStatus], *, retry_failed: bool = False) -> Resume[P]:
    """Sort the planned cells by what is left to do. Statuses of cells outside the plan are ignored.

    Kept: ok, oom, host_oom, unsupported, skipped. Run again: error, killed, timeout, interrupted, and what has no
    status. An ``unsupported`` cell that this machine does support runs; retry_failed also runs again what ran out of
    memory and what was skipped on that account.
    """
    run, kept, unsupported, skipped = [], [], [], []
    for cell in cells:
        status = statuses.get(cell.spec.cell_id)
        if status is not None and _stands(cell, status, retry_failed=retry_failed):
            kept.append(cell)
        elif cell.unsupported is not None:
            unsupported.append(cell)
        elif cell.skipped is not None:
            skipped.append(cell)
        else:
            run.append(cell)
    return Resume(run=tuple(run), kept=tuple(kept), unsupported=tuple(unsupported), skipped=tuple(skipped))


def _stands(cell: PlannedWork, status: CellStatus, *, retry_failed: bool) -> bool:
    if status.status == "ok":
        return True
    if status.status == "unsupported":
        return cell.unsupported is not None
    if status.status == "skipped":
        from_backstop = (status.reason or "").startswith(BACKSTOP)
        return not (retry_failed and from_backstop) and (from_backstop or cell.skipped is not None)
    if status.status in MEMORY:
        return not retry_failed
    return status.status in FINAL
