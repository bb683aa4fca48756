"""The out-of-memory backstop: after one cell ran out of memory, those that only ask for more need not be tried."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.matrix.expand import PlannedCell
from stepscope.records.cell import CellSpec, Options

BACKSTOP = "oom_backstop of "
"""How the reason of a skipped cell starts; the id of the cell that ran out of memory follows."""


def backstop(failed: PlannedCell, remaining: Iterable[PlannedCell]) -> dict[str, str]:
    """Cell id to reason, for the remaining cells that need at least the memory that ``failed`` did not get.

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
    mine, theirs = cell.spec, other.spec
    if cell.facts is None or other.facts is None or _same_frame(mine) != _same_frame(theirs):
        return False
    return (
        mine.micro_batch >= theirs.micro_batch
        and cell.facts.gradient_bytes >= other.facts.gradient_bytes
        and cell.facts.forward_flops_per_sample >= other.facts.forward_flops_per_sample
        and _optimizer_states(mine) >= _optimizer_states(theirs)
        and (cell.facts.optimizer_bytes or 0) >= (other.facts.optimizer_bytes or 0)
        and _no_less(mine.model, theirs.model)
        and _no_less(mine.dataset_options, theirs.dataset_options)
    )


def _same_frame(spec: CellSpec) -> tuple[object, ...]:
    """What must be equal for two cells' memory to be comparable at all."""
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
    """Tensors of the parameters' size that the optimizer keeps."""
    if spec.optimizer == "sgd":
        return 1 if spec.momentum else 0
    return 2


def _no_less(mine: Options, theirs: Options) -> bool:
    """Numeric options no smaller, others equal; names of sizes may differ, the facts speak for them."""
    if set(mine) != set(theirs):
        return False
    for key, value in mine.items():
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
