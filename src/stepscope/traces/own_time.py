"""What a rank did between two collectives: computing, copying, or idle and why."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import IDLE_CAUSES, OwnTime
from stepscope.stats import spans
from stepscope.traces.activity import Activity
from stepscope.traces.idle import IdleGaps

Ints = NDArray[np.int64]


def own_times(activity: Activity, gaps: IdleGaps, starts: Ints, ends: Ints) -> list[OwnTime]:
    """For each collective [starts[i], ends[i]), ascending by start: the time since the rank left the one before.

    That is since the latest end of those that started earlier; 0 when one of them is still running. What a rank of the CPU
    is blocked on a collective counts for nothing.
    """
    window = activity.window
    if window is None or not len(starts):
        return []
    left = np.maximum.accumulate(np.concatenate([np.array([window[0]], dtype=np.int64), ends]))[:-1]
    begins = np.minimum(left, starts)
    compute = spans.measure_within(activity.compute, begins, starts)
    copies = spans.subtract(activity.memory, activity.compute)
    memory = spans.measure_within(copies, begins, starts)
    idle = _idle_by_cause(gaps, begins, starts)
    own = starts - begins
    if activity.source == "cpu_spans":  # blocked on a collective that has not begun
        own = own - spans.measure_within(spans.subtract(activity.comm, activity.compute), begins, starts)
    columns = {"own_ns": own, "compute_ns": compute, "memory_ns": memory, **{f"{c}_ns": idle[c] for c in IDLE_CAUSES}}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [OwnTime(**dict(zip(columns, row, strict=True)), from_window_start=i == 0) for i, row in enumerate(rows)]


def _idle_by_cause(gaps: IdleGaps, begins: Ints, starts: Ints) -> dict[str, Ints]:
    """Idle time of each window by cause. Gaps and windows both end where something busy begins, so that a gap
    lies in one window or in none."""
    holes = gaps.holes
    totals = {cause: np.zeros(len(starts), dtype=np.int64) for cause in IDLE_CAUSES}
    if not len(holes):
        return totals
    owner = np.searchsorted(starts, holes.ends, side="left")
    safe = np.minimum(owner, len(starts) - 1)
    inside = (owner < len(starts)) & (begins[safe] <= holes.starts)
    for cause, values in gaps.by_cause.items():
        np.add.at(totals[cause], safe[inside], values[inside])
    return totals
