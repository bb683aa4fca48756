"""Why the device was idle: what the host was doing when the work that ends each gap should have been launched.

Gaps that are no part of the usual step: a checkpoint, an evaluation, a stall.

How the host kept the device supplied: delays, short work, late launches, and the queue between the two.

Time inside a CPU rank's operators that is their calling: operators as short as their call, and Python's own dispatch.
"""

from __future__ import annotations

import re
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.records.trace_budget import IdleCause, LongGap
from stepscope.records.trace_collectives import IDLE_CAUSES
from stepscope.records.trace_work import DelaySummary, LaunchStatistics, QueueLength
from stepscope.stats import spans
from stepscope.stats.spans import Spans, distinct
from stepscope.traces.activity import activity_of
from stepscope.traces.blocking_calls import ASYNC_COPY, blocking
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, once
from stepscope.traces.launches import launches_of, lost_launches
from stepscope.traces.marks import Marks, marks_of
from stepscope.traces.nesting import nest_events
from stepscope.traces.passes import COMM_LAUNCHES, autograd_work, loading_functions
from stepscope.traces.startup import longest_in, start_up
from stepscope.traces.steps import phases_of, windows_of

KERNEL_GAP_NS = 10_000
"""Longest gap between queued kernels that counts as ordinary: 1 to 5 us on one stream, about twice that across
streams (measured on the V100, A100 and MI300 traces this was built on, 2026-11)."""

REFILL_NS = 100_000
"""Most of the time between the return of a wait and the next launch that counts as the wait's: the queue is empty and the
operator that comes next takes this to launch (15 to 116 us, median 35, on the V100 traces this was built on, 2026-11).
What takes longer is the host's own doing, unless it stood as long in the wait."""

HIDDEN_NS = 250_000
"""Most of the time after a wait that counts as the wait's, where the host stood in it as long: without it, that much would
have been done under the device's work (171 to 317 us on MI250 and A100 traces, 2026-11). More is a cause of its own."""

START_NS = 100_000
"""Longest time from a launch to the start of its work on an idle device that counts as the launch's: 1 to 20 us on the V100,
A100 and MI300 traces this was built on (2026-11), the first work of a graph more. What takes longer waits for something else
on the device."""

WAITED_NS = 50_000
"""A call that launches work and returns behind its end waits for it if it lasts this long, and the device works during most
of it: a copy from pageable memory, any launch under CUDA_LAUNCH_BLOCKING. Shorter ones may be a fast device."""

RETURN_NS = 20_000
"""A call that launches nothing and returns within this of the end of all work, which fills most of it, waited for that,
whatever its name: drivers wake the host in 5 to 15 us."""

_ON_CPU = {"host_late": "outside_operators"}


@record
class IdleGaps:
    """Every gap in the window's busy time, and the ns of each by cause: arrays of shape (gaps,).

    calls: for ``start_up``, ``sync``, ``host_late`` and ``dependency``, the index into ``names`` of the host's call that
    each gap waits in, ends with, or lasts along with; for ``data`` that of a function of Python, for ``unknown`` of the copy
    of unified memory that ends it; NONE for gaps without that cause. The part of a gap that is ``sync``
    comes before the one that is ``host_late``.
    """

    holes: Spans
    by_cause: dict[str, Ints]
    window: tuple[int, int] = (0, 0)
    calls: dict[str, Ints] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def idle_causes(view: RankView) -> tuple[IdleCause, ...]:
    """Idle time of the window by cause; the causes sum to the idle time. Empty without busy events.

    A gap in which the next event had not been launched splits at the end of the call that launched it; after it is
    ``launch_latency``, or ``dependency`` where it is longer than ``START_NS``. Before it, ``start_up`` is what the host
    does once, ``sync`` the time in which the thread that launches was held by a call of the runtime, and up to
    ``REFILL_NS`` after that, or as long as it was held, up to ``HIDDEN_NS``; the rest is ``host_late``. Where data loading
    takes most of the way from the wait (or the gap's start) to the launch, all of that way is ``data``; where such calls
    take most of the way to the launch, all of it is ``sync``. Behind the last work nothing was launched. Queued work
    leaves ``kernel_gap`` or ``dependency``. In ``cpu_spans`` nothing is launched: what is not ``data`` is
    ``outside_operators``.
    """
    named = _ON_CPU if activity_of(view).source == "cpu_spans" else {}
    return tuple(
        _idle_cause(view.rank, named.get(cause, cause), values, _main_call(gaps_of(view), cause, values))
        for cause, values in gaps_of(view).by_cause.items()
        if values.any()
    )


@once
def idle_gaps(view: RankView) -> IdleGaps:
    """The gaps of one rank, before its first work and behind its last one too. None without busy events."""
    events, activity, launches, phases = view.events, activity_of(view), launches_of(view), phases_of(view)
    window = activity.window
    if window is None:
        return IdleGaps(holes=spans.EMPTY, by_cause={})
    holes = spans.gaps(activity.busy, low=window[0], high=window[1])
    if activity.source == "cpu_spans":
        return IdleGaps(holes=holes, by_cause=_cpu_gap_causes_ns(holes, phases["data"]), window=window)
    starts, ends = holes.starts, holes.ends
    following = np.searchsorted(events.ts_ns[activity.indices], ends, side="left")
    behind = following == len(launches.launch)  # the last work: nothing comes that could have been launched by then
    launch = np.append(launches.launch, [NONE, *launches.launch[launches.linked][-1:]][-1])[following]
    linked = launch != NONE
    call = np.where(linked, launch, 0)
    launched = np.where(linked, np.minimum(events.end_ns[call], ends), 0)  # a kernel may start inside its call
    launched[behind & linked] = ends[behind & linked]
    late = linked & (launched > starts)
    late_ns = np.where(late, launched - starts, 0)
    amount = {cause: np.zeros(len(starts), dtype=np.int64) for cause in IDLE_CAUSES}
    returned, held_ns, waited = _host_returns(view, call, starts, launched, late)
    in_data = spans.measure_within(phases["data"], returned, np.maximum(launched, returned))
    loading = late & (2 * in_data > launched - returned)
    loads = _first_load(phases["data"], returned)
    refilled = np.where(waited != NONE, np.minimum(returned + np.clip(held_ns, REFILL_NS, HIDDEN_NS), launched), starts)
    amount["sync"][late] = (np.where(loading, np.clip(refilled, returned, loads), refilled) - starts)[late]
    amount["data"][loading] = (launched - loads)[loading]
    amount["host_late"][late] = (late_ns - amount["sync"] - amount["data"])[late]
    once_only = start_up(view)
    amount["start_up"][late] = spans.measure_within(once_only.when, starts, np.maximum(launched, starts))[late]
    unpaid = amount["start_up"].copy()
    for cause in ("host_late", "data", "sync"):
        taken = np.minimum(unpaid, amount[cause])
        amount[cause], unpaid = amount[cause] - taken, unpaid - taken
    waits = ends - starts - late_ns > START_NS
    amount["launch_latency"][late & ~waits] = (ends - starts - late_ns)[late & ~waits]
    amount["dependency"][late & waits] = (ends - starts - late_ns)[late & waits]
    queued = linked & ~late
    short = ends - starts <= KERNEL_GAP_NS
    amount["kernel_gap"][queued & short] = (ends - starts)[queued & short]
    amount["dependency"][queued & ~short] = (ends - starts)[queued & ~short]
    amount["unknown"][~linked] = (ends - starts)[~linked]
    unseen = _holds_lost(view, holes)
    for cause in IDLE_CAUSES:
        amount[cause][unseen] = (ends - starts)[unseen] if cause == "unknown" else 0
    calls = {
        "start_up": longest_in(events, once_only.calls, holes, NONE),
        "sync": waited,
        "host_late": np.where(late & ~behind, events.name[call], NONE),
        "dependency": _waits_meanwhile(view, holes, amount["dependency"]),
        "data": longest_in(events, loading_functions(events), holes, NONE),
        "unknown": _page_copy_names(view, following, ~linked & ~behind & ~unseen),
    }
    return IdleGaps(holes=holes, by_cause=amount, window=window, calls=calls, names=events.names)


def _first_load(loading: Spans, returned: Ints) -> Ints:
    """Return for each gap when loading begins, as soon as the host is back unless it did something else for longer than
    ``REFILL_NS``."""
    if not len(loading):
        return returned
    at = np.minimum(np.searchsorted(loading.ends, returned, side="right"), len(loading) - 1)
    begins = loading.starts[at]
    return np.where(begins > returned + REFILL_NS, begins, returned)


_UNIFIED = re.compile(r"memcpy.*unified|unified.*memcpy|managed_?(to|2)_?|_?(to|2)_?managed", re.IGNORECASE)
"""Copies by which the driver moves pages of unified memory, when either side touches them: no call launches them."""


def _page_copy_names(view: RankView, following: Ints, unlinked: NDArray[np.bool_]) -> Ints:
    """Return for each gap that ends with such a copy its name, NONE for others."""
    events, indices = view.events, activity_of(view).indices
    work = indices[np.minimum(following, len(indices) - 1)]
    return np.where(unlinked & events.named(_UNIFIED.search, work[unlinked])[work], events.name[work], NONE)


def _pages_apart(gaps: IdleGaps) -> IdleGaps:
    """The gaps with those that end with moves of pages under the cause ``pages``, where there are any."""
    names = gaps.calls.get("unknown")
    if names is None or not (names != NONE).any():
        return gaps
    unknown = gaps.by_cause["unknown"]
    return replace(
        gaps,
        by_cause=gaps.by_cause
        | {"unknown": np.where(names == NONE, unknown, 0), "pages": np.where(names == NONE, 0, unknown)},
        calls={cause: calls for cause, calls in gaps.calls.items() if cause != "unknown"} | {"pages": names},
    )


def _waits_meanwhile(view: RankView, holes: Spans, queued_ns: Ints) -> Ints:
    """Return in which call the host waits for most of each gap before queued work, NONE where in none, and where that is
    less than half of the time."""
    events, none = view.events, np.full(len(holes), NONE, dtype=np.int64)
    calls = events.by_start(waiting_calls(view) & (events.dur_ns > START_NS) & queued_ns.any())
    if not len(calls):
        return none
    within = spans.measure_within(events.spans(calls), holes.starts, holes.ends)
    last = np.maximum(np.searchsorted(events.ts_ns[calls], holes.ends) - 1, 0)
    waits = 2 * within > holes.ends - holes.starts
    return np.where(waits, events.name[calls[last]], none) if 2 * queued_ns[waits].sum() > queued_ns.sum() else none


def _holds_lost(view: RankView, holes: Spans) -> NDArray[np.bool_]:
    """Return in which gaps a kernel may have run that is not in the file: it was launched behind the work before the gap and
    before the gap's end. What the device did there is unknown."""
    called = np.sort(view.events.ts_ns[lost_launches(view).unseen])
    if not len(called):
        return np.zeros(len(holes.starts), dtype=bool)
    launches = launches_of(view)
    before = np.searchsorted(view.events.ts_ns[launches.of], holes.ends, side="left") - 1
    launch = launches.launch[np.maximum(before, 0)]
    since = np.where((before >= 0) & (launch != NONE), view.events.ts_ns[launch], holes.starts)
    return np.searchsorted(called, holes.ends) > np.searchsorted(called, np.minimum(since, holes.starts))


def _host_returns(
    view: RankView, call: Ints, starts: Ints, launched: Ints, late: NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Return for each gap when the host came back from the calls that held it at the gap's start (that start where none
    did), at most ``launched``; how long the first of them held it; and its name, NONE where there is none.

    Only a wait in the line of host code that launches the gap's next work holds it back. Autograd's threads are in one
    line with the training loop's: each is idle while the other has work. Calls less than ``REFILL_NS`` apart are one wait.
    """
    events = view.events
    returned, names = starts.copy(), np.full(len(starts), NONE, dtype=np.int64)
    held_ns = np.zeros(len(starts), dtype=np.int64)
    holds = waiting_calls(view)
    waits = events.by_start(holds)
    if not len(waits) or not late.any():
        return returned, held_ns, names
    # A call may hold the host and launch: a copy that starts late inside of its own call.
    own_ns = np.where(late & holds[call] & (events.end_ns[call] >= launched), launched - events.ts_ns[call], 0)
    own = (own_ns > START_NS) & (2 * own_ns > launched - starts)
    returned[own], names[own] = launched[own], events.name[call][own]
    line = _host_lines(events)
    launching = line[events.thread[call]]
    for number in distinct(launching[late]).tolist():
        line_waits = waits[line[events.thread[waits]] == number]
        if not len(line_waits):
            continue
        began, reach = events.ts_ns[line_waits], np.maximum.accumulate(events.end_ns[line_waits])
        last = np.maximum.accumulate(np.where(events.end_ns[line_waits] == reach, np.arange(len(line_waits)), 0))
        run = np.cumsum(np.append(0, began[1:] > reach[:-1] + REFILL_NS))
        at = np.searchsorted(began, starts, side="right") - 1
        wait = line_waits[last[np.maximum(at, 0)]]
        delayed = late & (launching == number) & (at >= 0) & (events.end_ns[wait] > starts)
        delayed &= (events.thread[wait] == events.thread[call]) | (events.end_ns[wait] <= events.ts_ns[call])
        final = np.searchsorted(began, events.ts_ns[call]) - 1  # the last wait before the launch
        goes_on = (final > at) & (run[np.maximum(final, 0)] == run[np.maximum(at, 0)])
        back = reach[np.where(goes_on, final, np.maximum(at, 0))]
        returned[delayed] = np.minimum(back, launched)[delayed]
        held_ns[delayed] = events.dur_ns[wait][delayed]
        names[delayed] = events.name[wait][delayed]
        called = spans.measure_within(events.spans(line_waits), starts, np.maximum(launched, starts))
        ends_inside = (final >= 0) & (events.end_ns[line_waits[np.maximum(final, 0)]] > starts)
        taken = late & (launching == number) & ends_inside & (2 * called > launched - starts)
        returned[taken] = launched[taken]
        unnamed = taken & (names == NONE)
        names[unnamed] = events.name[line_waits[np.maximum(final, 0)]][unnamed]
    return returned, held_ns, names


@once
def waiting_calls(view: RankView) -> NDArray[np.bool_]:
    """Calls of the runtime that hold the host, by their names or their times, shape (len(events),)."""
    events, activity, launches = view.events, activity_of(view), launches_of(view)
    waits = blocking(events)
    behind = np.zeros(len(events), dtype=np.int64)
    np.maximum.at(behind, launches.launch[launches.linked], events.end_ns[launches.of[launches.linked]])
    calls = np.flatnonzero((behind > 0) & (behind <= events.end_ns) & (events.dur_ns >= WAITED_NS) & ~waits)
    worked = spans.measure_within(activity.busy, events.ts_ns[calls], events.end_ns[calls])
    waits[calls[(2 * worked >= events.dur_ns[calls]) | events.named(ASYNC_COPY.match)[calls]]] = True
    idle = events.of(Category.RUNTIME, Category.DRIVER) & (behind == 0) & (events.dur_ns >= WAITED_NS) & ~waits
    idle[lost_launches(view).unseen] = False
    calls = np.flatnonzero(idle)
    if len(calls) and len(activity.busy):
        low, high, busy = events.ts_ns[calls], events.end_ns[calls], activity.busy
        last = np.maximum(np.searchsorted(busy.ends, high, side="right") - 1, 0)
        free = busy.ends[last]  # the device has done all that it had, and the call returns at once
        began = np.searchsorted(busy.starts, high, side="left") > last + 1
        returns = (free >= low) & (high - free <= RETURN_NS) & (high >= free) & ~began
        waits[calls[returns & (2 * spans.measure_within(busy, low, high) >= high - low)]] = True
    return waits


def _host_lines(events: Events) -> Ints:
    """Return for each thread the number of its line: its own, or for autograd's threads that of the training loop. The
    loop's thread is the one with most time under the user's annotations, without any the one with most time in other
    operators."""
    line = np.arange(len(events.threads), dtype=np.int64)
    operators = events.category == Category.CPU_OP
    autograd = autograd_work(events)
    engine = distinct(events.thread[autograd])
    if not len(engine):
        return line
    for chosen in (events.category == Category.USER_ANNOTATION, operators & ~autograd):
        if chosen.any():
            line[engine] = events.busiest_thread(np.flatnonzero(chosen))
            return line
    return line


def _cpu_gap_causes_ns(holes: Spans, loading: Spans) -> dict[str, Ints]:
    in_data = spans.measure_within(loading, holes.starts, holes.ends)
    return {"data": in_data, "host_late": holes.ends - holes.starts - in_data}


def _main_call(gaps: IdleGaps, cause: str, values: Ints) -> str | None:
    """The host's call with most of this cause's time; None for causes without one."""
    if cause not in gaps.calls:
        return None
    calls = gaps.calls[cause]
    has_call = calls != NONE
    if not (values * has_call).any():
        return None
    return gaps.names[int(np.bincount(calls[has_call], weights=values[has_call]).argmax())]


def _idle_cause(rank: int, cause: str, values: NDArray[np.int64], call: str | None) -> IdleCause:
    """Return the row of one cause. values: ns of each gap."""
    return IdleCause(
        rank=rank,
        cause=cause,
        idle_ns=int(values.sum()),
        gap_count=int((values > 0).sum()),
        largest_ns=int(values.max()),
        call=call,
    )


LEAST_SHARE = 0.1
"""Of the window; shorter gaps are worth no finding of their own."""

OUTSTANDING = 5
"""How many times as long as the longest ordinary gap."""

LEAST_NS = 100_000_000
"""No checkpoint and no evaluation is shorter."""

MOST_GAPS = 3

ALONE_NS = 1_000_000_000
"""From this length on a gap stands out of a trace without marked steps, of which nothing says how long a step is."""


@once
def long_gaps(view: RankView) -> tuple[IdleGaps, tuple[LongGap, ...]]:
    """Return the gaps with the long ones under the cause ``long_gap``, and the long ones in order of time.

    Long are at most ``MOST_GAPS``, each ``LEAST_SHARE`` of the window, ``LEAST_NS`` and ``OUTSTANDING`` times the longest
    other gap, in at most half of the marked steps; with one marked step nothing tells what is usual. Gaps that hold a lost
    launch are left out.
    """
    gaps, marks = _pages_apart(idle_gaps(view)), windows_of(view).marks
    recorded = np.where(_holds_lost(view, gaps.holes), 0, gaps.holes.ends - gaps.holes.starts)
    lengths = recorded - gaps.by_cause.get("start_up", 0)
    if not len(lengths) or len(marks) == 1:
        return gaps, ()
    low, high = gaps.window
    order = np.argsort(-lengths, kind="stable")[: MOST_GAPS + 1]
    longest = np.append(lengths[order], 0)
    most = min(MOST_GAPS, len(marks) // 2 if len(marks) else MOST_GAPS)
    least = max(LEAST_SHARE * (high - low), LEAST_NS if len(marks) else ALONE_NS)
    count = next((k for k in range(1, most + 1) if longest[k - 1] >= OUTSTANDING * longest[k]), 0)
    if not count or longest[count - 1] < least:
        return gaps, ()
    chosen = np.sort(order[:count])
    outliers = tuple(_long_gap(view, gaps, marks, int(i)) for i in chosen)
    by_cause = {cause: values.copy() for cause, values in gaps.by_cause.items()}
    for cause, values in by_cause.items():
        values[chosen] = values[chosen] if cause == "start_up" else 0
    by_cause["long_gap"] = np.zeros(len(lengths), dtype=np.int64)
    by_cause["long_gap"][chosen] = lengths[chosen]
    return replace(gaps, by_cause=by_cause), outliers


def gaps_of(view: RankView) -> IdleGaps:
    """The gaps by their cause, long ones and those of unified memory apart."""
    return long_gaps(view)[0]


def _long_gap(view: RankView, gaps: IdleGaps, marks: Marks, place: int) -> LongGap:
    """Return the gap at this place: its step, its main cause, and what the host was in."""
    start, end = int(gaps.holes.starts[place]), int(gaps.holes.ends[place])
    step = int(np.searchsorted(marks.starts, start, side="right")) - 1
    return LongGap(
        rank=view.rank,
        after_ns=start - gaps.window[0],
        gap_ns=end - start,
        cause=max(gaps.by_cause, key=lambda cause: gaps.by_cause[cause][place]),
        step=int(marks.numbers[step]) if step >= 0 else None,
        host_in=_host_in(view.events, start, end),
    )


def _host_in(events: Events, start: int, end: int) -> str | None:
    """Return the operator or annotation that fills most of [start, end); None where none fills half of it, or one that is
    much longer itself, which says nothing of the gap."""
    host = events.of(Category.CPU_OP, Category.USER_ANNOTATION)
    host &= ~events.begins("ProfilerStep")
    during = (events.ts_ns < end) & (events.end_ns > start) & (events.dur_ns <= 1.5 * (end - start))
    near = np.flatnonzero(host & during)
    if not len(near):
        return None
    shared = np.minimum(events.end_ns[near], end) - np.maximum(events.ts_ns[near], start)
    best = int(np.argmax(shared))
    return events.name_of(int(near[best])) if 2 * shared[best] >= end - start else None


SLICES = 200
"""Slices of the queue's time line."""


def launch_statistics(view: RankView) -> LaunchStatistics | None:
    """Statistics of every device event that has its launch in the file; None when there is no device event.

    A launch that made several events (a CUDA graph) counts once per event.
    """
    events, launches = view.events, launches_of(view)
    device = events.is_device[launches.of]
    total = int(device.sum())
    if not total:
        return None
    linked = device & launches.linked
    work, call = launches.of[linked], launches.launch[linked]
    starts, ends = events.ts_ns[work], events.end_ns[work]
    called, call_ns = events.ts_ns[call], events.dur_ns[call]
    if not len(work):
        why = "no device event's launch is in the file (no runtime events, or all were launched before the capture)"
        return LaunchStatistics(
            rank=view.rank, launched=0, unlinked=total, early=0, delay=None, call=None,
            short_count=0, short_ns=0, short_call_ns=0, late_count=0, late_share=None,
            launches_per_s=None, queue=None, unavailable=why,
        )  # fmt: skip
    short = ends - starts < call_ns
    late, follows = _late_launch_counts(events, launches.of[device], launches.launch[device])
    one_each = distinct(call)
    host_ns = int((events.end_ns[one_each]).max() - events.ts_ns[one_each].min())
    return LaunchStatistics(
        rank=view.rank,
        launched=len(work),
        unlinked=total - len(work),
        early=int((starts < called).sum()),
        delay=_delay_summary(starts - called),
        call=_delay_summary(events.dur_ns[one_each]),
        short_count=int(short.sum()),
        short_ns=int((ends - starts)[short].sum()),
        short_call_ns=int(call_ns[short].sum()),
        late_count=late,
        late_share=late / follows if follows else None,
        launches_per_s=len(one_each) / (host_ns / 1e9) if host_ns else None,
        queue=queue_length(called, starts),
        unavailable=None,
    )


def _late_launch_counts(events: Events, work: Ints, launch: Ints) -> tuple[int, int]:
    """Count, of the linked events with a predecessor on their stream, those launched after it had ended, and all of them."""
    place = events.lane(work)
    order = np.lexsort((events.ts_ns[work], place))
    work, launch, place = work[order], launch[order], place[order]
    follows = (place[1:] == place[:-1]) & (launch[1:] >= 0)
    # On one stream work does not overlap, so the event before is the last to end.
    late = follows & (events.ts_ns[np.maximum(launch[1:], 0)] >= events.end_ns[work[:-1]])
    return int(late.sum()), int(follows.sum())


def queue_over_time(launched: Ints, started: Ints) -> tuple[Ints, Ints]:
    """Return when the number of what is launched and not yet started changes, and the number from then on; each entry of the
    inputs, shape (n,), is one piece of work. Of one moment, work starts before more is launched."""
    waits = started > launched
    times = np.concatenate([launched[waits], started[waits]])
    change = np.repeat(np.array([1, -1], dtype=np.int64), waits.sum())
    order = np.argsort(times, kind="stable")
    times, length = times[order], np.cumsum(change[order])
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[last], length[last]


def queue_length(launched: Ints, started: Ints) -> QueueLength | None:
    """Count what is launched and not yet started, over time; each entry of the inputs, shape (n,), is one piece of work.

    None without work, or when all of it was launched at one moment and started at once.
    """
    if not len(launched):
        return None
    low, high = int(launched.min()), int(max(started.max(), launched.max()))
    if high == low:
        return None
    times, length = queue_over_time(launched, started)
    edges = np.concatenate([[low], times, [high]])
    level = np.concatenate([[0], length])
    lasting = np.diff(edges)
    width = max(1, -(-(high - low) // SLICES))
    begins = np.arange(low, high, width)
    longest = _longest_by_slice(begins, edges[:-1], level, lasting)
    return QueueLength(
        mean=float((level * lasting).sum() / (high - low)),
        longest=int(level[lasting > 0].max()),
        empty_share=float(lasting[level == 0].sum() / (high - low)),
        times_ns=tuple(begins.tolist()),
        longest_by_slice=tuple(longest.tolist()),
    )


def _longest_by_slice(begins: Ints, edges: Ints, level: Ints, lasting: Ints) -> Ints:
    """Return for each slice of time the highest level in it."""
    real = lasting > 0
    edges, level = edges[real], level[real]
    at_start = level[np.maximum(np.searchsorted(edges, begins, side="right") - 1, 0)]
    longest = at_start.copy()
    np.maximum.at(longest, np.searchsorted(begins, edges, side="right") - 1, level)
    return longest


def _delay_summary(values: Ints) -> DelaySummary:
    """Return the quantiles of delays, ns."""
    ordered = np.sort(values)
    return DelaySummary(
        count=len(values),
        min_ns=int(values.min()),
        median_ns=float(np.median(values)),
        mean_ns=float(values.mean()),
        p90_ns=_quantile(ordered, 0.9),
        p99_ns=_quantile(ordered, 0.99),
        max_ns=int(values.max()),
    )


def _quantile(ordered: Ints, share: float) -> float:
    """Return the value below which this share lies, between two in proportion; np.quantile imports numpy.ma: 40 ms."""
    place = share * (len(ordered) - 1)
    low, high = (int(ordered[at]) for at in (int(place), min(int(place) + 1, len(ordered) - 1)))
    return low + (high - low) * (place - int(place))


DISPATCH_NS = 5_000
"""An operator on the CPU that takes no longer has computed next to nothing: the dispatcher alone takes 1 to 4 us."""

_IN_PYTHON = ("PythonSubclass", "Redistribute", "_ToTorchTensor", "_FromTorchTensor")
"""How operators begin that run Python inside: subclasses of tensors, DTensor's conversions."""


def host_dispatch(view: RankView) -> tuple[int, int, int]:
    """Return of the training loop's thread, within the steps where they are marked, how many operators are as short as their
    call, their time with that of Python's dispatch (ns), and how many operators are in no other."""
    events, marks = view.events, marks_of(view)
    operators = events.where(Category.CPU_OP)
    operators = operators[~events.begins("gloo:")[operators]]
    if not len(operators):
        return 0, 0, 0
    operators = operators[events.thread[operators] == events.busiest_thread(operators)]
    if len(marks):
        starts = events.ts_ns[operators]
        operators = operators[(starts >= marks.starts[0]) & (starts < marks.ends.max())]
    tree = nest_events(events, operators)
    top = (tree.parent == NONE) & ~events.begins(COMM_LAUNCHES)[tree.index]
    short = top & (tree.ends - tree.starts <= DISPATCH_NS)
    python = events.begins(_IN_PYTHON)[tree.index] & ~short
    spent = int((tree.ends - tree.starts)[short].sum() + tree.self_ns[python].sum())
    return int(short.sum()), spent, int(top.sum())
