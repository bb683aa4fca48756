"""The training steps of a rank, as ``ProfilerStep#N`` marks them, and the time budget of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_budget import OutsideWork, StepBudget
from stepscope.stats import spans
from stepscope.traces.activity import Activity, parts_within
from stepscope.traces.classify import Work
from stepscope.traces.events import NONE, Events, RankTrace
from stepscope.traces.host_marks import Marks, step_marks
from stepscope.traces.links import Launches

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """The steps of one rank and where each begins on the device: ``edges``, ascending, len(marks) + 1 of them.

    Both are empty without step annotations or busy events. boundary: launch | host, how the steps were told apart.
    """

    marks: Marks
    boundary: str
    edges: Ints


def step_windows(events: Events, activity: Activity, launches: Launches) -> StepWindows:
    """The windows of all steps.

    Device work runs behind the host; a step's window therefore begins with the first device work that the
    step launched and ends where the next one's begins; the last ends with the last busy event it launched or
    where work launched after it begins. Where the stream that computes longest still runs what was launched before
    while a step's first work starts on another stream (the copy of its input, say), the step begins with its first work
    on that stream: what was launched before the first step is in none of them.
    """
    marks = step_marks(events)
    window = activity.window
    if window is None or not len(marks):
        return StepWindows(marks=marks, boundary="host", edges=np.empty(0, dtype=np.int64))
    if activity.source == "device" and launches.known.any():
        known = launches.of[launches.known]
        when = events.ts_ns[launches.launch[launches.known]]
        begins = np.append(marks.starts, marks.ends[-1])  # the last one: what was launched after the steps
        owner = np.searchsorted(begins, when, side="right") - 1
        edges = _begins(events, known, owner, end=window[1], steps=len(begins))
        main = _main_stream(events, activity)
        on_main = np.isin(known, main)
        chosen = on_main | ~np.isin(owner, owner[on_main])
        by_main = _begins(events, known[chosen], owner[chosen], end=window[1], steps=len(begins))
        edges = np.where(_computes_until(events, main, by_main) > edges, by_main, edges)
        # A step that launched nothing is empty, and begins where the next one does.
        edges = np.minimum.accumulate(edges[::-1])[::-1]
        return StepWindows(marks=marks, boundary="launch", edges=edges)
    return StepWindows(marks=marks, boundary="host", edges=np.append(marks.starts, marks.ends[-1]))


def whole_steps(trace: RankTrace, activity: Activity, windows: StepWindows) -> StepWindows:
    """``windows`` without those that a truncated file holds a part of: the last one with work of the rank in it, and what
    the host began after that."""
    window = activity.window
    if window is None or not any(note.kind == "truncated" for note in trace.notes):
        return windows
    kept = max(int((windows.edges[:-1] < window[1]).sum()) - 1, 0)
    marks = windows.marks
    return StepWindows(
        marks=Marks(numbers=marks.numbers[:kept], starts=marks.starts[:kept], ends=marks.ends[:kept]),
        boundary=windows.boundary,
        edges=windows.edges[: kept + 1 if kept else 0],
    )


def _begins(events: Events, work: Ints, owner: Ints, *, end: int, steps: int) -> Ints:
    """Start of each step's first work, ``end`` for a step without any; ``owner`` is negative before the steps."""
    edges = np.full(steps, end, dtype=np.int64)
    inside = owner >= 0
    np.minimum.at(edges, owner[inside], events.ts_ns[work[inside]])
    return edges


def _main_stream(events: Events, activity: Activity) -> Ints:
    """Device work on the stream that computes longest."""
    compute = activity.indices[activity.work == Work.COMPUTE]
    lane = events.device.astype(np.int64) * (1 << 32) + events.stream
    lanes, place = np.unique(lane[compute], return_inverse=True)
    if not len(lanes):
        return np.empty(0, dtype=np.int64)
    main = lanes[np.argmax(np.bincount(place, weights=events.dur_ns[compute]))]
    on_main: Ints = activity.indices[lane[activity.indices] == main]
    return on_main


def _computes_until(events: Events, main: Ints, times: Ints) -> Ints:
    """For each time, the last end of the ``main`` stream's work that began before it; NONE without any."""
    if not len(main):
        return np.full(len(times), NONE, dtype=np.int64)
    order = main[np.argsort(events.ts_ns[main], kind="stable")]
    place = np.searchsorted(events.ts_ns[order], times, side="left") - 1
    return np.where(place >= 0, np.maximum.accumulate(events.end_ns[order])[np.maximum(place, 0)], NONE)


def step_budgets(trace: RankTrace, activity: Activity, windows: StepWindows) -> tuple[StepBudget, ...]:
    """One budget per step; empty when the trace has no step annotations."""
    marks, edges = windows.marks, windows.edges
    return tuple(
        StepBudget(
            rank=trace.rank,
            step=int(marks.numbers[i]),
            boundary=windows.boundary,
            start_ns=int(edges[i]),
            host_ns=int(marks.ends[i] - marks.starts[i]),
            parts=parts_within(activity, low=int(edges[i]), high=int(edges[i + 1])),
        )
        for i in range(len(edges) - 1)
    )


def outside_work(trace: RankTrace, activity: Activity, launches: Launches, windows: StepWindows) -> OutsideWork | None:
    """Device work outside the recorded steps, so that nothing is dropped silently; None without steps."""
    edges = windows.edges
    window = activity.window
    if not len(edges) or window is None:
        return None
    starts = trace.events.ts_ns[activity.indices]
    unknown = int((~launches.known).sum()) if windows.boundary == "launch" else 0
    first = int(edges[0])
    return OutsideWork(
        rank=trace.rank,
        before_first_step=int((starts < first).sum()),
        after_last_step=int((starts >= edges[-1]).sum()),
        launched_before_window=unknown,
        before_ns=spans.clip(activity.busy, low=min(window[0], first), high=first).measure,
    )
