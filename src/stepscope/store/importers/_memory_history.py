"""The recorded history of an allocator: how high it went, what lived then, and how often it asked the driver.

The history is a ring: its beginning may be lost, its end is the snapshot. So it is walked back from the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_GROWS = frozenset(["segment_alloc", "segment_map"])
_SHRINKS = frozenset(["segment_free", "segment_unmap"])


class _Event(Protocol):
    action: str
    addr: int
    size: int
    time_us: int | None
    device_free: int | None
    frames: list[Any] | None


class _Block(Protocol):
    size: int
    requested_size: int | None
    address: int | None
    frames: list[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """retries: times that segments were given back directly before one was asked for."""

    allocations: int
    driver_allocations: int
    driver_frees: int
    retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """peak_requested: bytes that live tensors asked for. live_at_peak: (bytes, frames) of what lived then.

    complete: nothing lived before the first event. late: the second half of the requests and what lies between them.
    """

    peak_requested: int
    peak_reserved: int
    live_at_peak: tuple[tuple[int, Sequence[Any]], ...]
    complete: bool
    span_ns: int | None
    ooms: int
    last_oom: _Event | None
    reserved_at_oom: int | None
    whole: Counts
    late: Counts


def history_of(trace: Sequence[_Event], live: Sequence[_Block], *, reserved: int) -> History:
    """``live``: what lives at the snapshot, ``reserved``: what is reserved there."""
    asked = peak = sum(_requested(b) for b in live)
    held = most_held = reserved
    peak_after = len(trace)  # number of events before the peak
    ooms = 0
    last_oom: _Event | None = None
    reserved_at_oom: int | None = None
    for number in range(len(trace) - 1, -1, -1):
        event = trace[number]
        if event.action == "oom":
            ooms += 1
            if last_oom is None:
                last_oom, reserved_at_oom = event, held
        elif event.action == "alloc":
            asked -= event.size
        elif event.action == "free_requested":
            asked += event.size
        elif event.action in _GROWS:
            held -= event.size
        elif event.action in _SHRINKS:
            held += event.size
        most_held = max(most_held, held)
        if asked > peak:
            peak, peak_after = asked, number
    times = [event.time_us for event in trace if event.time_us is not None]
    return History(
        peak_requested=peak,
        peak_reserved=most_held,
        live_at_peak=_live_after(trace, live, peak_after),
        complete=asked == 0,
        span_ns=(max(times) - min(times)) * 1000 if times else None,
        ooms=ooms,
        last_oom=last_oom,
        reserved_at_oom=reserved_at_oom,
        whole=_counts(trace),
        late=_counts(trace[_half_of_requests(trace) :]),
    )


def _half_of_requests(trace: Sequence[_Event]) -> int:
    """Number of events up to and with the request in the middle: growing a pool takes more events than using it."""
    requests = [number for number, event in enumerate(trace) if event.action == "alloc"]
    return requests[len(requests) // 2 - 1] + 1 if len(requests) > 1 else len(trace)


def _live_after(trace: Sequence[_Event], live: Sequence[_Block], number: int) -> tuple[tuple[int, Sequence[Any]], ...]:
    """What lived after the first ``number`` events. A free carries the frames of its allocation."""
    there: dict[object, tuple[int, Sequence[Any]]] = {
        (position if block.address is None else block.address, block.address is None): (
            _requested(block),
            block.frames or (),
        )
        for position, block in enumerate(live)
    }
    for event in reversed(trace[number:]):
        if event.action == "alloc":
            there.pop((event.addr, False), None)
        elif event.action == "free_requested":
            there[event.addr, False] = (event.size, event.frames or ())
    return tuple(there.values())


def _counts(trace: Sequence[_Event]) -> Counts:
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


def _requested(block: _Block) -> int:
    return block.size if block.requested_size is None else block.requested_size
