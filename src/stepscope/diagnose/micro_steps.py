"""How many backward passes of one step reduce the same gradients: more than one is accumulation without ``no_sync``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.traces.collective_calls import DTYPE_BYTES

_FORWARD = "DistributedDataParallel.forward"
_WHOLE = 0.02
"""Reduced elements / parameters is a number of passes when it is this close to a whole number."""


def micro_steps(summary: TraceSummary) -> int | None:
    """Passes a step that reduce the same gradients, median rank; None: no step shows reductions by hooks or units."""
    known = [k for p in summary.ranks if (k := _of_rank(p)) is not None]
    return median_low(known) if known else None


def _of_rank(each: RankPass) -> int | None:
    steps: dict[int, list[BucketRow]] = defaultdict(list)
    for row in each.buckets:
        if row.step is not None and row.op in ("all_reduce", "reduce_scatter"):
            steps[row.step].append(row)
    if not steps:
        return _of_units(each)
    passes = _forward_passes(each)
    return median_low([_of_step(each, sorted(rows, key=lambda r: r.launch_ns), passes) for rows in steps.values()])


def _forward_passes(each: RankPass) -> int | None:
    """Calls of DDP's forward a step; None where it is not annotated, or the annotations were not read."""
    calls = next((row.calls for row in each.annotations if row.name == _FORWARD), 0)
    return round(calls / len(each.steps)) if calls and each.steps else None


def _of_step(each: RankPass, rows: Sequence[BucketRow], passes: int | None) -> int:
    """1 unless the same sizes follow each other in the same order, and something says that a pass ends between them."""
    parameters = each.facts.setup.parameters if each.facts.setup is not None else None
    if parameters and passes != 1:
        reduced = sum((row.size_bytes or 0) / DTYPE_BYTES.get(row.dtype or "", 4) for row in rows) / parameters
        whole = round(reduced)
        return whole if whole > 1 and abs(reduced - whole) <= _WHOLE * whole and _repeats(rows, whole) else 1
    if passes is not None:
        return passes if passes > 0 and _repeats(rows, passes) else 1
    return next((k for k in range(len(rows) // 2, 1, -1) if _repeats(rows, k) and _apart(rows, k)), 1)


def _repeats(rows: Sequence[BucketRow], times: int) -> bool:
    length, rest = divmod(len(rows), times)
    if rest or not length:
        return False
    kinds = [(row.op, row.size_bytes) for row in rows]
    return all(kinds[i] == kinds[i % length] for i in range(len(kinds)))


def _apart(rows: Sequence[BucketRow], times: int) -> bool:
    """Whether a forward pass fits between two passes: every gap there is longer than any inside one."""
    length = len(rows) // times
    gaps = [b.launch_ns - a.launch_ns for a, b in pairwise(rows)]
    between = [gap for i, gap in enumerate(gaps) if (i + 1) % length == 0]
    inside = [gap for i, gap in enumerate(gaps) if (i + 1) % length]
    return bool(inside) and min(between) > max(inside)


def _of_units(each: RankPass) -> int | None:
    """Reductions of one sharded unit in a step."""
    if each.units is None:
        return None
    found: dict[tuple[int | None, str], int] = defaultdict(int)
    for call in each.units.calls:
        if call.op == "reduce_scatter" and call.unit is not None and call.step is not None:
            found[call.step, call.unit] += 1
    return median_low(found.values()) if found else None
