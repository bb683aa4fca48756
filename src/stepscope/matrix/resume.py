"""Which cells still have to run: what an earlier attempt left, and what an out-of-memory says of larger cells."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import named, unknown
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.work import PlannedWork
from stepscope.records.cell import CellSpec, CellStatus, Options
from stepscope.records.nouns import Status

BACKSTOP = "oom_backstop of "
"""How the reason of a skipped cell starts; the id of the cell that ran out of memory follows."""


def backstop(failed: PlannedCell, remaining: Iterable[PlannedCell]) -> dict[str, str]:
    """Map cell id to reason, for the remaining cells that need at least the memory that ``failed`` did not get.

    A cell needs at least as much when everything that memory depends on is equal except for more of: samples per
    micro-step, model size (each numeric option, parameters and FLOP per sample), optimizer state. Anything that cannot
    be ordered so is not skipped.
    """
    return {
        cell.spec.cell_id: f"{BACKSTOP}{failed.spec.cell_id}"
        for cell in remaining
        if cell.spec.cell_id != failed.spec.cell_id and needs_at_least(cell, failed)
    }


def needs_at_least(cell: PlannedCell, other: PlannedCell) -> bool:
    """True when ``cell`` provably needs no less memory per rank than ``other``."""
    own, theirs = cell.spec, other.spec
    if cell.facts is None or other.facts is None or _same_frame(own) != _same_frame(theirs):
        return False
    return (
        own.micro_batch >= theirs.micro_batch
        and cell.facts.gradient_bytes >= other.facts.gradient_bytes
        and cell.facts.forward_flops_per_sample >= other.facts.forward_flops_per_sample
        and _optimizer_states(own) >= _optimizer_states(theirs)
        and (cell.facts.optimizer_bytes or 0) >= (other.facts.optimizer_bytes or 0)
        and _no_less(own.model, theirs.model)
        and _no_less(own.dataset_options, theirs.dataset_options)
    )


def _same_frame(spec: CellSpec) -> tuple[object, ...]:
    """Return what must be equal for two cells' memory to be comparable at all."""
    return (
        spec.workload,
        spec.dataset,
        spec.strategy,
        sorted(spec.strategy_options.items(), key=lambda item: item[0]),
        spec.precision,
        spec.accumulation > 1,
        spec.world_size,
        spec.loss,
        spec.optimizer == "own",
        spec.device,
        spec.backend,
        spec.threads_per_rank,
        spec.num_workers,
        spec.cudnn_benchmark,
        spec.clip is None,
        dict(spec.env),
        spec.network,
    )


def _optimizer_states(spec: CellSpec) -> int:
    """Count the tensors of the parameters' size that the optimizer keeps."""
    if spec.optimizer == "sgd":
        return 1 if spec.momentum else 0
    return 2


def _no_less(own: Options, theirs: Options) -> bool:
    """Whether numeric options are no smaller, others equal; names of sizes may differ, the facts speak for them."""
    if set(own) != set(theirs):
        return False
    for key, value in own.items():
        other = theirs[key]
        if value == other and isinstance(value, bool) == isinstance(other, bool):
            continue
        if _is_number(value) and _is_number(other):
            if value < other:  # type: ignore[operator]
                return False
        elif key not in ("size", "layers"):
            return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


P = TypeVar("P", bound=PlannedWork)

FINAL: frozenset[Status] = frozenset({"ok", "oom", "host_oom", "unsupported", "skipped"})
"""Results: a cell that has one is not run again. An out-of-memory is a result."""

FAILED, BASELINE = "failed", "baseline"
"""Words of ``--rerun`` that name several cells."""


@record
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
    """Return ids of cells with a status that ``--rerun`` names: by id or its beginning, ``failed``, or ``baseline``.

    failed: what is neither ok nor known to be unsupported, so also what ran out of memory and what was skipped for it.
    baseline: cells to which the speed-ups of others refer, which ``baselines`` reads from the results so far. Raises
    UsageError for a name that no cell has, or several, and where no cell is a baseline.
    """
    ids = [cell.spec.cell_id for cell in cells]
    chosen: set[str] = set()
    for word in asked:
        if word == FAILED:
            chosen.update(i for i in ids if i in statuses and statuses[i].status not in ("ok", "unsupported"))
            continue
        if word == BASELINE:
            chosen.update(_matching_baselines(ids, baselines()) if statuses else ())
            continue
        these = named(word, ids)
        if not these:
            choices = [FAILED, BASELINE, *ids]
            raise UsageError(unknown("--rerun", word, choices), fix="--plan -o DIR --json lists the ids of cells")
        if len(these) > 1:
            fix = f"write more of the id: {', '.join(these[:5])}"
            raise UsageError(f"--rerun {word!r} names {len(these)} cells", fix=fix)
        chosen.update(these)
    return frozenset(chosen & statuses.keys())


def _matching_baselines(ids: Sequence[str], baselines: Container[str]) -> list[str]:
    """Return the cells that are baselines. Raises UsageError where none is."""
    matches = [cell_id for cell_id in ids if cell_id in baselines]
    if not matches:
        why = "a baseline is a comparable cell on fewer ranks than another"
        raise UsageError(
            "--rerun baseline: no cell of this matrix is a baseline", why=why, fix="name cells by their ids"
        )
    return matches


def plan_resume(cells: Iterable[P], statuses: Mapping[str, CellStatus]) -> Resume[P]:
    """Sort the planned cells by what is left to do. Statuses of cells outside the plan are ignored.

    Kept: ok, oom, host_oom, unsupported, skipped. Run again: error, killed, timeout, interrupted, and what has no
    status. An ``unsupported`` cell that this machine does support runs. Cells to be measured once more have no status here.
    What failed before runs last: in a world that only its launcher can start again, it would end the others' turn.
    """
    run, kept, unsupported, skipped = [], [], [], []
    for cell in cells:
        status = statuses.get(cell.spec.cell_id)
        if status is not None and _still_counts(cell, status):
            kept.append(cell)
        elif cell.unsupported is not None:
            unsupported.append(cell)
        elif cell.skipped is not None:
            skipped.append(cell)
        else:
            run.append(cell)
    run.sort(key=lambda cell: _has_failed(statuses.get(cell.spec.cell_id)))
    return Resume(run=tuple(run), kept=tuple(kept), unsupported=tuple(unsupported), skipped=tuple(skipped))


def _has_failed(status: CellStatus | None) -> bool:
    return status is not None and status.status in ("error", "killed", "timeout")


def _still_counts(cell: PlannedWork, status: CellStatus) -> bool:
    """Whether the status of an earlier run still counts."""
    if status.status == "ok":
        return True
    if status.status == "unsupported":
        return cell.unsupported is not None
    if status.status == "skipped":
        from_backstop = (status.reason or "").startswith(BACKSTOP)
        return from_backstop or cell.skipped is not None
    return status.status in FINAL
