"""Resuming: which cells of a plan still have to run, given what an earlier attempt left."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stepscope.core.errors import UsageError
from stepscope.core.suggest import named, unknown
from stepscope.matrix.backstop import BACKSTOP
from stepscope.matrix.cell_kind import PlannedWork
from stepscope.records.run import CellStatus, Status

P = TypeVar("P", bound=PlannedWork)

FINAL: frozenset[Status] = frozenset({"ok", "oom", "host_oom", "unsupported", "skipped"})
"""Results: a cell that has one is not run again. An out-of-memory is a result."""

FAILED, BASELINE = "failed", "baseline"
"""Words of ``--rerun`` that name several cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Generic[P]):
    """Cells of a plan, by what is to be done with them; every planned cell is in exactly one.

    run: to start. kept: have a result already. unsupported, skipped: to be recorded as such without running.
    """

    run: tuple[P, ...]
    kept: tuple[P, ...]
    unsupported: tuple[P, ...]
    skipped: tuple[P, ...]


def cells_to_rerun(
    asked: Iterable[str],
    cells: Sequence[PlannedWork],
    statuses: Mapping[str, CellStatus],
    baselines: Callable[[], Container[str]],
) -> frozenset[str]:
    """Ids of cells with a status that ``--rerun`` names: by id or its beginning, ``failed``, or ``baseline``.

    failed: what is neither ok nor known to be unsupported, so also what ran out of memory and what was skipped for it.
    baseline: cells to which the speed-ups of others refer, which ``baselines`` reads from the results so far. Raises
    UsageError for a name that no cell has, or several, and where no cell is a baseline.
    """
    ids = [cell.spec.cell_id for cell in cells]
    found: set[str] = set()
    for word in asked:
        if word == FAILED:
            found.update(i for i in ids if i in statuses and statuses[i].status not in ("ok", "unsupported"))
            continue
        if word == BASELINE:
            found.update(_baselines(ids, baselines()) if statuses else ())
            continue
        these = named(word, ids)
        if not these:
            known = [FAILED, BASELINE, *ids]
            raise UsageError(unknown("--rerun", word, known), fix="--plan -o DIR --json lists the ids of cells")
        if len(these) > 1:
            fix = f"write more of the id: {', '.join(these[:5])}"
            raise UsageError(f"--rerun {word!r} names {len(these)} cells", fix=fix)
        found.update(these)
    return frozenset(found & statuses.keys())


def _baselines(ids: Sequence[str], baselines: Container[str]) -> list[str]:
    found = [cell_id for cell_id in ids if cell_id in baselines]
    if not found:
        why = "a baseline is a comparable cell on fewer ranks than another"
        raise UsageError(
            "--rerun baseline: no cell of this matrix is a baseline", why=why, fix="name cells by their ids"
        )
    return found


def plan_resume(cells: Iterable[P], statuses: Mapping[str, CellStatus]) -> Resume[P]:
    """Sort the planned cells by what is left to do. Statuses of cells outside the plan are ignored.

    Kept: ok, oom, host_oom, unsupported, skipped. Run again: error, killed, timeout, interrupted, and what has no
    status. An ``unsupported`` cell that this machine does support runs. Cells to be measured once more have no status here.
    """
    run, kept, unsupported, skipped = [], [], [], []
    for cell in cells:
        status = statuses.get(cell.spec.cell_id)
        if status is not None and _stands(cell, status):
            kept.append(cell)
        elif cell.unsupported is not None:
            unsupported.append(cell)
        elif cell.skipped is not None:
            skipped.append(cell)
        else:
            run.append(cell)
    return Resume(run=tuple(run), kept=tuple(kept), unsupported=tuple(unsupported), skipped=tuple(skipped))


def _stands(cell: PlannedWork, status: CellStatus) -> bool:
    if status.status == "ok":
        return True
    if status.status == "unsupported":
        return cell.unsupported is not None
    if status.status == "skipped":
        from_backstop = (status.reason or "").startswith(BACKSTOP)
        return from_backstop or cell.skipped is not None
    return status.status in FINAL
