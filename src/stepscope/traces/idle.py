"""Why the device was idle: what the host was doing when the work that ends each gap should have been launched."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_budget import IdleCause
from stepscope.records.trace_collectives import IDLE_CAUSES
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity, window_of
from stepscope.traces.events import NONE, Category, Events
from stepscope.traces.links import Launches

Ints = NDArray[np.int64]

KERNEL_GAP_NS = 10_000
"""Longest gap between queued kernels that counts as ordinary: 1 to 5 us on one stream, about twice that across
streams (measured on the V100, A100 and MI300 traces this was built on, 2026-11)."""

_SYNC = re.compile(
    r"^(cuda|hip)(Stream|Device|Event|Ctx)Synchronize|^cuCtxSynchronize|^cuStreamSynchronize|^cuEventSynchronize"
    r"|^(cuda|hip)Memcpy(_v2)?$|^(cuda|hip)(Free|FreeHost|HostAlloc|Malloc)$"
)
"""Calls that return only when the device has caught up (a blocking copy and cudaFree among them)."""

_ON_CPU = {"host_late": "outside_operators"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGaps:
    """Every gap in the window's busy time, and the ns of each by cause: arrays of shape (gaps,).

    calls: index into ``names`` of the host's call that a gap of ``sync`` or ``host_late`` ends with or waits in; NONE for
    others.
    """

    holes: Spans
    by_cause: dict[str, Ints]
    window: tuple[int, int] = (0, 0)
    calls: Ints | None = None
    names: tuple[str, ...] = ()


def idle_causes(gaps: IdleGaps, *, rank: int, source: str) -> tuple[IdleCause, ...]:
    """Idle time of the window by cause; the causes sum to the idle time. Empty without busy events.

    A gap in which the next event had not been launched splits at the end of the call that launched it: before, the
    host was late (or in ``sync`` or ``data``), after it ``launch_latency``. Queued work leaves ``kernel_gap`` or
    ``dependency``. In ``cpu_spans`` nothing is launched: what is not ``data`` is ``outside_operators``.
    """
    named = _ON_CPU if source == "cpu_spans" else {}
    return tuple(
        _cause(rank, named.get(cause, cause), values, _main_call(gaps, cause, values))
        for cause, values in gaps.by_cause.items()
        if values.any()
    )


def idle_gaps(events: Events, activity: Activity, launches: Launches, phases: dict[str, Spans]) -> IdleGaps:
    """The gaps of one rank; ``phases``: its ``phase_spans``. None without busy events."""
    window = window_of(activity, events)
    if window is None:
        return IdleGaps(holes=spans.EMPTY, by_cause={})
    holes = spans.gaps(activity.busy, low=window[0], high=window[1])
    if activity.source == "cpu_spans":
        return IdleGaps(holes=holes, by_cause=_on_cpu(holes, phases["data"]), window=window)
    starts, ends = holes.starts, holes.ends
    following = np.searchsorted(events.ts_ns[activity.indices], ends, side="left")
    launch = launches.launch[following]
    known = launch != NONE
    call = np.where(known, launch, 0)
    launched = np.where(known, np.minimum(events.end_ns[call], ends), 0)  # a kernel may start inside its call
    late = known & (launched > starts)
    late_ns = np.where(late, launched - starts, 0)
    amount = {cause: np.zeros(len(starts), dtype=np.int64) for cause in IDLE_CAUSES}
    why, waited = _why_late(events, phases["data"], starts, launched, late)
    for cause in ("sync", "data", "host_late"):
        mine = why == IDLE_CAUSES.index(cause)
        amount[cause][mine] = late_ns[mine]
    amount["launch_latency"][late] = (ends - starts - late_ns)[late]
    queued = known & ~late
    short = ends - starts <= KERNEL_GAP_NS
    amount["kernel_gap"][queued & short] = (ends - starts)[queued & short]
    amount["dependency"][queued & ~short] = (ends - starts)[queued & ~short]
    amount["unknown"][~known] = (ends - starts)[~known]
    calls = np.where(why == IDLE_CAUSES.index("sync"), waited, np.where(late, events.name[call], NONE))
    return IdleGaps(holes=holes, by_cause=amount, window=window, calls=calls, names=events.names)


def _why_late(
    events: Events, loading: Spans, starts: Ints, launched: Ints, late: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """For each late gap: sync when the host was still waiting for the device at its start, data when most of the
    way to the launch was data loading, host_late otherwise. Index into IDLE_CAUSES; NONE for gaps that are not late.
    Then the name of the call that waited, NONE for gaps of other causes."""
    result = np.full(len(starts), NONE, dtype=np.int64)
    result[late] = IDLE_CAUSES.index("host_late")
    runtime = np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    waits = runtime & events.named(_SYNC.match)
    waiting = spans.union(events.ts_ns[waits], events.end_ns[waits])
    names = np.full(len(starts), NONE, dtype=np.int64)
    # The call that waited begins before the gap does and returns inside it.
    at = np.searchsorted(waiting.starts, starts, side="right") - 1
    if len(waiting):
        held = (at >= 0) & (waiting.ends[np.maximum(at, 0)] > starts)
        result[late & held] = IDLE_CAUSES.index("sync")
        order = np.argsort(events.ts_ns[waits], kind="stable")
        last = np.searchsorted(events.ts_ns[waits][order], starts, side="right") - 1
        names[late & held] = events.name[waits][order][np.maximum(last, 0)][late & held]
    in_data = spans.measure_within(loading, starts, np.maximum(launched, starts))
    result[late & (2 * in_data > launched - starts)] = IDLE_CAUSES.index("data")
    return result, names


def _on_cpu(holes: Spans, loading: Spans) -> dict[str, Ints]:
    in_data = spans.measure_within(loading, holes.starts, holes.ends)
    return {"data": in_data, "host_late": holes.ends - holes.starts - in_data}


def _main_call(gaps: IdleGaps, cause: str, values: Ints) -> str | None:
    """The host's call with most of this cause's time; None for causes without one."""
    if gaps.calls is None or cause not in ("sync", "host_late"):
        return None
    known = gaps.calls != NONE
    if not (values * known).any():
        return None
    return gaps.names[int(np.bincount(gaps.calls[known], weights=values[known]).argmax())]


def _cause(rank: int, cause: str, values: NDArray[np.int64], call: str | None) -> IdleCause:
    return IdleCause(
        rank=rank,
        cause=cause,
        idle_ns=int(values.sum()),
        gap_count=int((values > 0).sum()),
        largest_ns=int(values.max()),
        call=call,
    )
