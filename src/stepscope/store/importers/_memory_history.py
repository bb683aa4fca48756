"""The recorded history of an allocator: how high it went, what lived then, and how often it asked the driver.

The history is a ring: its beginning may be lost, its end is the snapshot. So it is counted back from the snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stepscope.records.imported import KINDS, MemoryHolder, MemoryOverTime, MemorySnapshot
from stepscope.store.importers._memory_lives import AllocatorEvent, Life, alive, place

_GROWS = frozenset(["segment_alloc", "segment_map"])
_SHRINKS = frozenset(["segment_free", "segment_unmap"])
SLICES = 200
HOLDERS = 20
"""Places in the code that are kept, largest first."""


def with_history(record: MemorySnapshot, trace: Sequence[AllocatorEvent], lives: Sequence[Life]) -> MemorySnapshot:
    """``record``, of one device at the snapshot, with what its history tells. lives: judged, of this trace.

    Late is the second half of the requests, with what lies between them.
    """
    held = most_held = record.segment_bytes
    failed: list[tuple[AllocatorEvent, int]] = []  # the last one first, and what was reserved then
    for event in reversed(trace):
        if event.action == "oom":
            failed.append((event, held))
        elif event.action in _GROWS:
            held -= event.size
        elif event.action in _SHRINKS:
            held += event.size
        most_held = max(most_held, held)
    last, reserved_then = failed[0] if failed else (None, 0)
    driver_free = None if last is None else last.device_free
    capacity = record.capacity_bytes
    if capacity is None and driver_free is not None:
        capacity = reserved_then + driver_free
    times = [event.time_us for event in trace if event.time_us is not None]
    levels = _levels(lives, len(trace))
    total = levels.sum(axis=1)
    peak = int(np.argmax(total))  # events before it
    at_peak = alive(lives, peak - 1)
    late = trace[_half_of_requests(trace) :]
    return replace(
        record,
        peak_requested_bytes=int(total[peak]),
        peak_reserved_bytes=most_held,
        history_complete=not any(life.begins < 0 for life in lives),
        history_ns=(max(times) - min(times)) * 1000 if times else None,
        capacity_bytes=capacity,
        oom_events=len(failed),
        oom_request_bytes=None if last is None else last.size,
        oom_driver_free_bytes=driver_free,
        driver_allocations=_count(trace, _GROWS),
        driver_frees=_count(trace, _SHRINKS),
        retries=_retries(trace),
        late_allocations=_count(late, ("alloc",)),
        late_driver_allocations=_count(late, _GROWS),
        late_driver_frees=_count(late, _SHRINKS),
        late_retries=_retries(late),
        peak_holders=holders(at_peak, lambda life: place(life.stack)),
        peak_modules=holders([life for life in at_peak if life.module], lambda life: life.module),
        peak_kinds=by_kind(at_peak),
        over_time=_over_time(trace, levels, total),
    )


def holders(lives: Sequence[Life], where: Callable[[Life], str]) -> tuple[MemoryHolder, ...]:
    """Bytes by place and kind, the :data:`HOLDERS` largest."""
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    blocks: dict[tuple[str, str], int] = defaultdict(int)
    for life in lives:
        key = where(life), life.kind
        sizes[key] += life.size
        blocks[key] += 1
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))[:HOLDERS]
    return tuple(MemoryHolder(where=k[0], kind=k[1], size_bytes=sizes[k], blocks=blocks[k]) for k in largest)


def by_kind(lives: Sequence[Life]) -> tuple[tuple[str, int], ...]:
    """Bytes of every kind that holds some."""
    sizes = {kind: sum(life.size for life in lives if life.kind == kind) for kind in KINDS}
    return tuple((kind, size) for kind, size in sizes.items() if size)


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
    trace: Sequence[AllocatorEvent],
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


def _half_of_requests(trace: Sequence[AllocatorEvent]) -> int:
    """Number of events up to and with the request in the middle: growing a pool takes more events than using it."""
    requests = [number for number, event in enumerate(trace) if event.action == "alloc"]
    return requests[len(requests) // 2 - 1] + 1 if len(requests) > 1 else len(trace)


def _count(trace: Sequence[AllocatorEvent], actions: Container[str]) -> int:
    return sum(event.action in actions for event in trace)


def _retries(trace: Sequence[AllocatorEvent]) -> int:
    """How often segments were given back directly before one was asked for."""
    done = [event.action for event in trace if event.action != "oom"]
    return sum(before in _SHRINKS and action in _GROWS for before, action in pairwise(done))
