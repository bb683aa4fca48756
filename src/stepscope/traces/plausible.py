"""Times that cannot be: events far outside of their capture go, and device work that claims the time of what follows it on
its stream is cut there; what stands in the file twice is read once.

A stream does one thing after the other. Kernels of one stream overlap by microseconds where the next one may begin early,
and freely where a graph runs its branches under one stream's name; a copy of 4 kB that lasts until long after the next
kernel has begun has a wrong end.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints, selected
from stepscope.traces.places import places_of

if TYPE_CHECKING:
    from stepscope.records.trace_quality import QualityFact

APART_NS = 3_600_000_000_000
"""No capture lasts an hour: what lies further from the middle of all events is none of it."""

OUTLASTS_NS = 1_000_000
"""Least time beyond the start of the next of its stream; early starts and clocks' resolution give some 10 us."""

OUTSIDE_NS, MOST_OUTSIDE, FAR = 1_000_000_000, 0.1, 10
"""A device event this long before the first or behind the last call of the host is looked at, if few are: at most this share
of all. So many times as long as all calls together is further than any queue reaches."""

_NEVER = 1 << 62

_GRAPH = re.compile(r"(cuda|cu|hip)Graph(Launch|Exec)")


def plausible(events: Events) -> tuple[Events, tuple[QualityFact, ...]]:
    """Return the events without times that cannot be, and how many there were; the same events where there are none."""
    if not len(events):
        return events, ()
    middle = int(np.partition(events.ts_ns, len(events) // 2)[len(events) // 2])
    away = (np.abs(events.ts_ns - middle) > APART_NS) | (events.end_ns - middle > APART_NS)
    called = _called_range_ns(events, ~away)
    away |= _astray_mask(events, ~away, called)
    twice = _repeated_mask(events, ~away)
    kept = ~away & ~twice
    whole = bool(kept.all())
    places, ends = _outlasting_events(events if whole else selected(events, kept), called)
    if whole and not len(places):
        return events, ()
    from stepscope.records.trace_quality import QualityFact  # few traces have such times

    facts: list[QualityFact] = []
    device = events.is_device
    for kind, gone in (("impossible-times", away), ("repeated", twice)):
        if gone.any():
            # Of device events alone, where there are such: the profiler's own span is as long as what it holds.
            of = device if (gone & device).any() else np.ones(len(events), dtype=bool)
            facts.append(
                QualityFact(
                    kind=kind,
                    count=int((gone & of).sum()),
                    of=int(of.sum()),
                    names=_first_names(events, np.flatnonzero(gone & of)),
                    matters=kind != "repeated" and of is device,
                )
            )
    if not whole:
        events = selected(events, kept)
    if len(places):
        duration = events.dur_ns.copy()
        claimed = int(duration[places].sum())
        duration[places] = ends - events.ts_ns[places]
        facts.append(
            QualityFact(
                kind="impossible-ends",
                count=len(places),
                of=int(events.is_device.sum()),
                time_ns=claimed - int(duration[places].sum()),
                names=_first_names(events, places),
            )
        )
        events = replace(events, dur_ns=duration)
    return events, tuple(facts)


def _first_names(events: Events, chosen: Ints) -> tuple[str, ...]:
    return tuple(dict.fromkeys(events.name_of(int(i)) for i in chosen[:100]))[:3]


def _called_range_ns(events: Events, kept: NDArray[np.bool_]) -> tuple[int, int] | None:
    """When the first call of the runtime begins and the last one ends; None without any."""
    calls = kept & events.of(Category.RUNTIME, Category.DRIVER)
    return (int(events.ts_ns[calls].min()), int(events.end_ns[calls].max())) if calls.any() else None


def _very_far(called: tuple[int, int]) -> int:
    return max(OUTSIDE_NS, FAR * (called[1] - called[0]))


def _astray_mask(events: Events, kept: NDArray[np.bool_], called: tuple[int, int] | None) -> NDArray[np.bool_]:
    """Return which device events lie outside of all calls and cannot: they start before their launch, or behind what was
    launched later on their stream, or very far away. Where many do, the clocks differ or calls were not recorded."""
    astray = np.zeros(len(events), dtype=bool)
    if called is None:
        return astray
    low, high = called
    start = events.ts_ns
    outside = kept & events.is_device & ((start < low - OUTSIDE_NS) | (start > high + OUTSIDE_NS))
    if not outside.any() or outside.sum() > MOST_OUTSIDE * events.is_device.sum():
        return astray
    from stepscope.traces.nesting import launch_of  # few traces have such times

    device = np.flatnonzero(events.is_device & kept)
    launch, lane = launch_of(events, device), events.lane(device)
    linked, apart, launched = launch != NONE, outside[device], start[np.maximum(launch, 0)]
    very_far = _very_far(called)
    cannot = apart & ((start[device] < low - very_far) | (start[device] > high + very_far))
    cannot |= apart & linked & (start[device] < launched - OUTSIDE_NS)
    for number in distinct(lane[apart]).tolist():
        usual = launched[(lane == number) & linked & ~apart]
        if len(usual):
            cannot |= apart & linked & (lane == number) & (start[device] > high) & (launched < usual.max())
    astray[device[cannot]] = True
    return astray


def _repeated_mask(events: Events, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which device events stand in the file before, with the same start, length, name, launch and stream."""
    twice = np.zeros(len(events), dtype=bool)
    device = np.flatnonzero(events.is_device & kept & (events.dur_ns > 0))
    if len(device) < 2:
        return twice
    device = device[np.argsort(events.ts_ns[device], kind="stable")]
    same = events.ts_ns[device[1:]] == events.ts_ns[device[:-1]]
    if same.any() and len(places_of(events).hosts) <= 1:  # of several processes, streams may bear one number
        first, second = device[:-1][same], device[1:][same]
        alike = events.lane(first) == events.lane(second)
        for column in (events.dur_ns, events.name, events.thread, events.correlation):
            alike &= column[first] == column[second]
        twice[second[alike]] = True
    return twice


def _outlasting_events(events: Events, called: tuple[int, int] | None) -> tuple[Ints, Ints]:
    """Return the device events that last until ``OUTLASTS_NS`` beyond the start of the next of their stream, and that
    start; of the last one, very far beyond all calls, and the end of those. Work of graphs is left as it is."""
    none = np.empty(0, dtype=np.int64)
    long = np.flatnonzero(events.is_device & (events.dur_ns > OUTLASTS_NS))
    if not len(long) or len(places_of(events).hosts) > 1:  # of several ranks, the streams of each are looked at
        return none, none
    device = np.flatnonzero(events.is_device)
    lanes, processes = events.lane(device), events.thread[device]
    places, ends = [], []
    for lane in distinct(events.lane(long)).tolist():
        here = device[lanes == lane]
        if len(distinct(processes[lanes == lane])) > 1:
            continue  # streams of several processes bear one number
        here = here[np.argsort(events.ts_ns[here], kind="stable")]
        starts = events.ts_ns[here]
        following = np.append(starts[1:], _NEVER if called is None else called[1] + _very_far(called))
        beyond = np.flatnonzero(events.end_ns[here] - following > OUTLASTS_NS)
        places.append(here[beyond])
        last = beyond == len(here) - 1
        ends.append(np.where(last, np.maximum(starts[beyond], 0 if called is None else called[1]), following[beyond]))
    chosen, until = np.concatenate(places or [none]), np.concatenate(ends or [none])
    if len(chosen):
        graphs = events.correlation[events.of(Category.RUNTIME, Category.DRIVER) & events.named(_GRAPH.match)]
        own = ~np.isin(events.correlation[chosen], graphs)
        chosen, until = chosen[own], until[own]
    return chosen, until
