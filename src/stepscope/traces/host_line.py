"""What each host thread was doing at any time, and where it waited for the device or took over from another thread.

Waits between streams: which stream each call of ``cudaStreamWaitEvent`` holds back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.stats import spans
from stepscope.stats.spans import Spans, distinct
from stepscope.traces.blocking_calls import ASYNC_COPY, STREAM_WAIT, blocking
from stepscope.traces.events import NONE, Category, Events, Ints
from stepscope.traces.nesting import find, nest
from stepscope.traces.passes import autograd_nodes

OPERATOR, RUNTIME, OTHER, GLOO = range(4)
"""What a host thread's time is spent in; GLOO: inside a gloo collective."""

_Breaks = Ints
"""One row per break, by time: thread, time, and the fields of Break."""


@dataclass(frozen=True, slots=True)
class Break:
    """A time on a thread before which the path runs elsewhere: on the device (``device`` = place of the event among
    ``DeviceLine``'s, left at its end) or on another thread, left at ``time``.
    """

    device: int
    thread: int
    time: int


class HostLine:
    """All host threads of one rank."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._gloo = events.begins("gloo:")
        shown = (Category.CPU_OP, Category.RUNTIME, Category.DRIVER, Category.USER_ANNOTATION)
        self._all = events.where(*shown).astype(np.int32)
        annotation = events.category[self._all] == Category.USER_ANNOTATION
        self._active = self._all[~annotation | self._gloo[self._all]]
        self.threads = distinct(events.thread[self._active]).tolist()
        self._flat: dict[int, _Flat] = {}
        self._breaks: dict[int, _Breaks] = {}

    @property
    def start_ns(self) -> int | None:
        """When the first of the host's events begins; None without any."""
        return int(self._events.ts_ns[self._all].min()) if len(self._all) else None

    def flat(self, thread: int) -> _Flat:
        """The thread's time in pieces, each with the innermost event that is open in it."""
        if thread not in self._flat:
            indices = self._all[self._events.thread[self._all] == thread]
            self._flat[thread] = _Flat(self._events, indices, self._gloo)
        return self._flat[thread]

    def last_end(self) -> tuple[int, int] | None:
        """(thread, time) of the end of the last host activity; None without any."""
        if not len(self._active):
            return None
        i = self._active[int(np.argmax(self._events.end_ns[self._active]))]
        return int(self._events.thread[i]), int(self._events.end_ns[i])

    def find_breaks(self, device: Ints, launch: Ints) -> None:
        """Find where threads waited for the device or took over from another one.

        ``device``: the rank's device events by end; ``launch``: their launches, NONE where unknown.
        """
        parts = [self._copied(device, launch), self._waited(device, launch), *self._handovers()]
        rows = np.concatenate([np.zeros((0, 5), dtype=np.int64), *parts])
        rows = rows[np.lexsort((rows[:, 4], rows[:, 1], rows[:, 0]))]
        for thread in distinct(rows[:, 0]).tolist():
            low, high = np.searchsorted(rows[:, 0], [thread, thread + 1])
            self._breaks[thread] = rows[low:high]

    def break_before(self, thread: int, time: int) -> Break | None:
        """The last break of the thread at or before a time."""
        rows = self._breaks.get(thread)
        if rows is None:
            return None
        at = int(np.searchsorted(rows[:, 1], time, side="right")) - 1
        return Break(*rows[at, 2:].tolist()) if at >= 0 else None

    def _copied(self, device: Ints, launch: Ints) -> Ints:
        """Find asynchronous copies that returned after their copy had ended: they did wait for it (pageable memory)."""
        events = self._events
        copies = events.named(ASYNC_COPY.match)
        places = np.flatnonzero(launch != NONE)
        call = launch[places]
        waited = copies[call] & (events.end_ns[device[places]] <= events.end_ns[call])
        waited &= events.dur_ns[device[places]] > 0
        call, places = call[waited], places[waited]
        none = np.full(len(call), NONE, dtype=np.int64)
        columns = [events.thread[call].astype(np.int64), events.end_ns[call], places, none]
        return np.stack([*columns, events.end_ns[device[places]]], axis=1)

    def _waited(self, device: Ints, launch: Ints) -> Ints:
        """Find calls that wait, and during which device work ended that was launched before them."""
        events = self._events
        calls = np.flatnonzero(blocking(events))
        ends = events.end_ns[device]
        accounts = _wait_accounts(events, calls)
        streams = np.where(accounts != NONE, events.stream[accounts], NONE)
        places = {int(s): np.flatnonzero(events.stream[device] == s) for s in distinct(streams) if s != NONE}
        places[NONE] = np.arange(len(device))
        ends_of = {s: ends[p] for s, p in places.items()}
        rows = []
        for call, stream in zip(calls.tolist(), streams.tolist(), strict=True):
            begin, end, thread = int(events.ts_ns[call]), int(events.end_ns[call]), int(events.thread[call])
            at = int(np.searchsorted(ends_of[stream], end, side="right")) - 1
            while at >= 0 and ends_of[stream][at] > begin:
                place = int(places[stream][at])
                by = int(launch[place])
                later = by != NONE and events.thread[by] == thread and events.ts_ns[by] >= begin
                if not later and events.dur_ns[device[place]] > 0:
                    rows.append((thread, end, place, NONE, int(ends[place])))
                    break
                at -= 1
        return np.array(rows, dtype=np.int64).reshape(-1, 5)

    def _handovers(self) -> list[Ints]:
        """Find where a thread that was idle goes on after another one of the training's threads had come to an end."""
        activity = {t: self._activity(t) for t in self._training_threads()}
        gloo = self._gloo_threads()
        parts = []
        for thread, ours in activity.items():
            if not len(ours):
                continue
            before = np.concatenate([[np.iinfo(np.int64).min], ours.ends[:-1]])
            best, source = before.copy(), np.full(len(ours), NONE, dtype=np.int64)
            for other, theirs in activity.items():
                if other == thread or not len(theirs):
                    continue
                at = np.searchsorted(theirs.ends, ours.starts, side="right") - 1
                last = np.where(at >= 0, theirs.ends[np.maximum(at, 0)], np.iinfo(np.int64).min)
                if thread in gloo and other not in gloo:
                    # Its work is queued by a call that may still be running.
                    last = np.where(spans.holds(theirs, ours.starts), ours.starts, last)
                better = last > best
                best[better], source[better] = last[better], other
            handed = np.flatnonzero(source != NONE)
            same = np.full(len(handed), thread, dtype=np.int64)
            none = np.full(len(handed), NONE, dtype=np.int64)
            parts.append(np.stack([same, ours.starts[handed], none, source[handed], best[handed]], axis=1))
        return parts

    def _activity(self, thread: int) -> Spans:
        indices = self._active[self._events.thread[self._active] == thread]
        return self._events.spans(indices)

    def _gloo_threads(self) -> set[int]:
        chosen = self._active[self._gloo[self._active]]
        return set(distinct(self._events.thread[chosen]).tolist())

    def _training_threads(self) -> list[int]:
        """The thread that runs the training loop, the autograd engine's threads and gloo's."""
        events = self._events
        operators = events.where(Category.CPU_OP)
        if not len(operators):
            return []
        chosen = set(distinct(events.thread[autograd_nodes(events)]).tolist()) | self._gloo_threads()
        marked = events.where(Category.USER_ANNOTATION)
        marked = marked[~self._gloo[marked]]
        for source in (marked, operators):
            rest = source[~np.isin(events.thread[source], list(chosen))]
            if len(rest):
                chosen.add(events.busiest_thread(rest))
                break
        return sorted(chosen & set(self.threads))


class _Flat:
    """One thread's time cut at every start and end, with what is innermost in each piece."""

    def __init__(self, events: Events, indices: Ints, gloo: NDArray[np.bool_]) -> None:
        one = np.zeros(len(indices), dtype=np.int8)
        tree = nest(indices, one, events.ts_ns[indices], events.end_ns[indices])
        edges = np.concatenate([tree.starts, tree.ends])
        edges.sort()
        self.edges = edges[np.concatenate([[True], edges[1:] != edges[:-1]])] if len(edges) else edges
        del edges
        pieces = max(len(self.edges) - 1, 0)
        inner = tree.innermost(np.broadcast_to(np.int8(0), pieces), self.edges[:-1])
        covered = inner != NONE
        np.maximum(inner, 0, out=inner)
        self.event = np.full(pieces, NONE, dtype=np.int32)
        self.event[covered] = tree.index[inner[covered]]
        del tree, inner
        kind = np.full(pieces, OTHER, dtype=np.int8)
        category = events.category[self.event]  # NONE takes any: ``covered`` decides
        kind[covered & (category == Category.CPU_OP)] = OPERATOR
        kind[covered & ((category == Category.RUNTIME) | (category == Category.DRIVER))] = RUNTIME
        kind[covered & gloo[self.event]] = GLOO
        self.kind = kind
        self._before: dict[int, Ints] = {}
        for k in (OPERATOR, RUNTIME, GLOO):
            if (kind == k).any():
                total = np.zeros(len(self.edges), dtype=np.int64)
                np.subtract(self.edges[1:], self.edges[:-1], out=total[1:])
                total[1:] *= kind == k
                self._before[k] = np.cumsum(total, out=total)

    def split(self, low: int, high: int) -> tuple[int, int, int, int]:
        """Time of [low, high) in operators, runtime calls, neither, and gloo; sums to high - low."""
        a, b = self._at(low), self._at(high)
        parts = [y - x for x, y in zip(a, b, strict=True)]
        parts[OTHER] = (high - low) - sum(parts)
        return parts[0], parts[1], parts[2], parts[3]

    def _at(self, time: int) -> list[int]:
        """Return the time before ``time`` by kind; OTHER is not counted, it is what is left."""
        done = [0, 0, 0, 0]
        at = int(np.searchsorted(self.edges, time, side="right")) - 1
        if at < 0:
            return done
        for k, before in self._before.items():
            done[k] = int(before[at])
        if at < len(self.kind) and self.kind[at] != OTHER:
            done[int(self.kind[at])] += time - int(self.edges[at])
        return done

    def lengths_within(self, covered: Spans) -> Ints:
        """How much of each piece the set covers, shape (pieces,)."""
        return spans.measure_within(covered, self.edges[:-1], self.edges[1:])


NEVER = int(np.iinfo(np.int64).min)
"""A time before every other."""


@record
class StreamWaits:
    """The wait calls of one rank, shape (waits,).

    streams: the one that each holds back (device x 2^31 + stream), recorded or concluded; NONE where nothing tells.
    recorded: whether the profiler recorded it.
    """

    events: Events
    times: Ints
    threads: Ints
    streams: Ints
    recorded: NDArray[np.bool_]

    def last_before(self, calls: Ints, streams: Ints) -> Ints:
        """Return when the last wait began that can delay a launch by ``calls[i]`` on ``streams[i]``; NEVER without one."""
        times = self.events.ts_ns[calls]
        with_stream, unrecorded = self.streams != NONE, ~self.recorded
        on_stream = _last_places_before(self.streams[with_stream], self.times[with_stream], streams, times)
        on_thread = _last_places_before(
            self.threads[unrecorded], self.times[unrecorded], self.events.thread[calls].astype(np.int64), times
        )
        return np.maximum(_times_at(self.times[with_stream], on_stream), _times_at(self.times[unrecorded], on_thread))


def stream_waits(events: Events, calls: Ints, streams: Ints, communicates: NDArray[np.bool_]) -> StreamWaits:
    """Find all waits. ``calls``: the launches of device work on ``streams``, some of which ``communicates``.

    Where the stream is not recorded it is that of the next launch of the waiting thread: a collective's stream waits right
    before the collective, a thread's own stream before it goes on. A thread that launches nothing more (autograd's, after
    the last backward pass) waited with the stream of its last launch that was no collective.
    """
    waits = events.where(Category.RUNTIME, Category.DRIVER)
    waits = waits[events.named(STREAM_WAIT.match)[waits]]
    times, threads = events.ts_ns[waits], events.thread[waits].astype(np.int64)
    accounts = _wait_accounts(events, waits)
    recorded = accounts != NONE
    named = np.where(recorded, events.lane(accounts), NONE)
    if len(waits) and not recorded.all():
        thread, called = events.thread[calls].astype(np.int64), events.ts_ns[calls]
        own = ~communicates
        # Of the next one: what is last when time runs backwards.
        following = _last_places_before(thread, -called, threads, -times)
        before = _last_places_before(thread[own], called[own], threads, times)
        last = np.full(len(waits), NONE, dtype=np.int64)
        last[before != NONE] = streams[own][before[before != NONE]]
        named = np.where(recorded, named, np.where(following != NONE, streams[following], last))
    return StreamWaits(events=events, times=times, threads=threads, streams=named, recorded=recorded)


def _wait_accounts(events: Events, waits: Ints) -> Ints:
    """The profiler's own account of each wait, an event (cuda_sync) that names a stream; NONE without one."""
    sync = events.where(Category.SYNC)
    sync = sync[(events.correlation[sync] != NONE) & (events.stream[sync] != NONE)]
    at = find(events.correlation[sync], events.correlation[waits])
    accounts = np.full(len(waits), NONE, dtype=np.int64)
    accounts[at != NONE] = sync[at[at != NONE]]
    return accounts


def _last_places_before(keys: Ints, times: Ints, wanted: Ints, before: Ints) -> Ints:
    """Find for each of ``wanted`` the last entry's place with this key and a time below ``before``; NONE without one."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    all_keys = distinct(np.concatenate([keys, wanted]))
    every = np.concatenate([times, before])
    low = int(every.min())
    width = int(every.max()) - low + 1
    order = np.lexsort((times, keys))
    line = np.searchsorted(all_keys, keys[order]) * width + (times[order] - low)
    at = np.searchsorted(line, np.searchsorted(all_keys, wanted) * width + (before - low)) - 1
    place = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (keys[place] == wanted), place, NONE)


def _times_at(times: Ints, places: Ints) -> Ints:
    """The times at these places, NEVER at NONE."""
    if not len(times):
        return np.full(len(places), NEVER, dtype=np.int64)
    return np.where(places != NONE, times[places], NEVER)
