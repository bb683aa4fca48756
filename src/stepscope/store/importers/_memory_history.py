"""The recorded history of an allocator: how high it went, what lived then, and how often it asked the driver.

The history is a ring: its beginning may be lost, its end is the snapshot. So it is counted back from the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepscope.records.memory_snapshot import KINDS, MemoryOverTime
from stepscope.store.importers import _memory_lives
from stepscope.store.importers._memory_lives import Life, alive

_GROWS = frozenset(["segment_alloc", "segment_map"])
_SHRINKS = frozenset(["segment_free", "segment_unmap"])
SLICES = 200


class Event(_memory_lives.Event, Protocol):
    time_us: int | None
    device_free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """retries: times that segments were given back directly before one was asked for."""

    allocations: int
    driver_allocations: int
    driver_frees: int
    retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """peak_requested: bytes that live tensors asked for. at_peak: what lived then.

    complete: nothing lived before the first event. late: the second half of the requests and what lies between them.
    """

    peak_requested: int
    peak_reserved: int
    at_peak: tuple[Life, ...]
    over_time: MemoryOverTime
    complete: bool
    span_ns: int | None
    ooms: int
    last_oom: Event | None
    reserved_at_oom: int | None
    whole: Counts
    late: Counts


def history_of(trace: Sequence[Event], lives: Sequence[Life], *, reserved: int) -> History:
    """``lives``: judged, of this trace; ``reserved``: what is reserved at the snapshot."""
    held = most_held = reserved
    ooms = 0
    last_oom: Event | None = None
    reserved_at_oom: int | None = None
    for event in reversed(trace):
        if event.action == "oom":
            ooms += 1
            if last_oom is None:
                last_oom, reserved_at_oom = event, held
        elif event.action in _GROWS:
            held -= event.size
        elif event.action in _SHRINKS:
            held += event.size
        most_held = max(most_held, held)
    times = [event.time_us for event in trace if event.time_us is not None]
    levels = _levels(lives, len(trace))
    total = levels.sum(axis=1)
    peak = int(np.argmax(total))  # events before it
    return History(
        peak_requested=int(total[peak]),
        peak_reserved=most_held,
        at_peak=tuple(alive(lives, peak - 1)),
        over_time=_over_time(trace, levels, total),
        complete=not any(life.begins < 0 for life in lives),
        span_ns=(max(times) - min(times)) * 1000 if times else None,
        ooms=ooms,
        last_oom=last_oom,
        reserved_at_oom=reserved_at_oom,
        whole=_counts(trace),
        late=_counts(trace[_half_of_requests(trace) :]),
    )


def _levels(lives: Sequence[Life], events: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Bytes by kind, before the first event and after each."""
    changes = np.zeros((events + 1, len(KINDS)), dtype=np.int64)
    for life in lives:
        kind = KINDS.index(life.kind)
        changes[life.begins + 1, kind] += life.size
        if life.ends is not None and life.ends < events:
            changes[life.ends + 1, kind] -= life.size
    return np.cumsum(changes, axis=0)


def _over_time(
    trace: Sequence[Event],
    levels: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    total: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> MemoryOverTime:
    """The highest moment of each slice of the history: of time where it has times, else of events."""
    times = [event.time_us for event in trace]
    timed = all(time is not None and time >= 0 for time in times) and len(set(times)) > 1
    at = np.maximum.accumulate(np.array(times if timed else range(len(trace)), dtype=np.int64))
    at = np.concatenate([at[:1], at]) - at[0]  # what lives before the first event stands at its time
    slice_ = at * SLICES // (int(at[-1]) + 1)
    order = np.lexsort((total, slice_))  # the highest of each slice is its last
    chosen = order[np.flatnonzero(np.append(slice_[order][1:] != slice_[order][:-1], True))]
    return MemoryOverTime(
        times_ns=tuple((at[chosen] * 1000).tolist()) if timed else None,
        events=tuple(chosen.tolist()),
        bytes_by_kind=tuple(
            (kind, tuple(levels[chosen, n].tolist())) for n, kind in enumerate(KINDS) if levels[:, n].any()
        ),
    )


def _half_of_requests(trace: Sequence[Event]) -> int:
    """Number of events up to and with the request in the middle: growing a pool takes more events than using it."""
    requests = [number for number, event in enumerate(trace) if event.action == "alloc"]
    return requests[len(requests) // 2 - 1] + 1 if len(requests) > 1 else len(trace)


def _counts(trace: Sequence[Event]) -> Counts:
    retries = 0
    before = ""
    for event in trace:
        if event.action in _GROWS and before in _SHRINKS:
            retries += 1
        if event.action != "oom":
            before = event.action
    return Counts(
        allocations=sum(e.action == "alloc" for e in trace),
        driver_allocations=sum(e.action in _GROWS for e in trace),
        driver_frees=sum(e.action in _SHRINKS for e in trace),
        retries=retries,
    )
