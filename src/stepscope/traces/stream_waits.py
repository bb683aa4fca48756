"""Waits between streams: which stream each call of ``cudaStreamWaitEvent`` holds back."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events

Ints = NDArray[np.int64]

NEVER = int(np.iinfo(np.int64).min)
"""A time before every other."""

_STREAM_WAIT = re.compile(r"^(cuda|hip)StreamWaitEvent|^cuStreamWaitEvent")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        """When the last wait began that can hold back a launch by ``calls[i]`` on ``streams[i]``; NEVER without one."""
        times = self.events.ts_ns[calls]
        known, unrecorded = self.streams != NONE, ~self.recorded
        on_stream = _last(self.streams[known], self.times[known], streams, times)
        on_thread = _last(
            self.threads[unrecorded], self.times[unrecorded], self.events.thread[calls].astype(np.int64), times
        )
        return np.maximum(_times(self.times[known], on_stream), _times(self.times[unrecorded], on_thread))


def stream_waits(events: Events, calls: Ints, streams: Ints, communicates: NDArray[np.bool_]) -> StreamWaits:
    """All waits. ``calls``: the launches of device work on ``streams``, some of which ``communicates``.

    Where the stream is not recorded it is that of the next launch of the waiting thread: a collective's stream waits right
    before the collective, a thread's own stream before it goes on. A thread that launches nothing more (autograd's, after
    the last backward pass) waited with the stream of its last launch that was no collective.
    """
    found = events.where(Category.RUNTIME, Category.DRIVER)
    found = found[events.named(_STREAM_WAIT.search)[found]]
    times, threads = events.ts_ns[found], events.thread[found].astype(np.int64)
    named = _recorded(events, found)
    recorded = named != NONE
    if len(found) and not recorded.all():
        thread, called = events.thread[calls].astype(np.int64), events.ts_ns[calls]
        own = ~communicates
        # Of the next one: what is last when time runs backwards.
        following = _last(thread, -called, threads, -times)
        before = _last(thread[own], called[own], threads, times)
        last = np.full(len(found), NONE, dtype=np.int64)
        last[before != NONE] = streams[own][before[before != NONE]]
        named = np.where(recorded, named, np.where(following != NONE, streams[following], last))
    return StreamWaits(events=events, times=times, threads=threads, streams=named, recorded=recorded)


def _recorded(events: Events, waits: Ints) -> Ints:
    """The stream that the profiler's own account of each wait (cuda_sync) names; NONE without one."""
    streams = np.full(len(waits), NONE, dtype=np.int64)
    sync = events.where(Category.SYNC)
    sync = sync[(events.correlation[sync] != NONE) & (events.stream[sync] != NONE)]
    if not len(sync) or not len(waits):
        return streams
    order = sync[np.argsort(events.correlation[sync], kind="stable")]
    ids = events.correlation[order]
    place = np.minimum(np.searchsorted(ids, events.correlation[waits]), len(ids) - 1)
    hit = ids[place] == events.correlation[waits]
    of = order[place[hit]]
    streams[hit] = events.device[of].astype(np.int64) * (2**31) + events.stream[of]
    return streams


def _last(keys: Ints, times: Ints, wanted: Ints, before: Ints) -> Ints:
    """For each of ``wanted``: the place of the last entry with this key and a time below ``before``; NONE without one."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    known = distinct(np.concatenate([keys, wanted]))
    every = np.concatenate([times, before])
    low = int(every.min())
    width = int(every.max()) - low + 1
    order = np.lexsort((times, keys))
    line = np.searchsorted(known, keys[order]) * width + (times[order] - low)
    at = np.searchsorted(line, np.searchsorted(known, wanted) * width + (before - low)) - 1
    place = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (keys[place] == wanted), place, NONE)


def _times(times: Ints, places: Ints) -> Ints:
    """The times at these places, NEVER at NONE."""
    if not len(times):
        return np.full(len(places), NEVER, dtype=np.int64)
    return np.where(places != NONE, times[places], NEVER)
