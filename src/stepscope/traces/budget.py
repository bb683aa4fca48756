"""The time budget of a rank's whole capture."""

from __future__ import annotations

from stepscope.records.trace_budget import RankBudget
from stepscope.traces.activity import Activity, parts_within, window_of
from stepscope.traces.events import RankTrace


def rank_budget(trace: RankTrace, activity: Activity) -> RankBudget | None:
    """Compute, communication, copies and idle time from the first to the last busy event; None without any.

    Nothing is dropped: the last step, work launched before the capture and kernels below 1 us count.
    """
    window = window_of(activity, trace.events)
    if window is None:
        return None
    low, high = window
    return RankBudget(
        rank=trace.rank,
        source=activity.source,
        start_ns=low,
        parts=parts_within(activity, low=low, high=high),
        event_count=len(activity.indices),
    )
