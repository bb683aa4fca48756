"""Times that cannot be: events far outside of their capture go, and device work that claims the time of what follows it on
its stream is cut there.

A stream does one thing after the other. Kernels of one stream overlap by microseconds where the next one may begin early,
and freely where a graph runs its branches under one stream's name; a copy of 4 kB that lasts until long after the next
kernel has begun has a wrong end.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.stats.spans import distinct
from stepscope.traces.events import Category, Events, Ints, selected
from stepscope.traces.places import places_of

if TYPE_CHECKING:
    from stepscope.records.trace_quality import QualityFact

APART_NS = 3_600_000_000_000
"""No capture lasts an hour: what lies further from the middle of all events is none of it."""

OUTLASTS_NS = 1_000_000
"""Least time beyond the start of the next of its stream; early starts and clocks' resolution give some 10 us."""

_GRAPH = re.compile(r"(cuda|cu|hip)Graph(Launch|Exec)")


def plausible(events: Events) -> tuple[Events, tuple[QualityFact, ...]]:
    """Return the events without times that cannot be, and how many there were; the same events where there are none."""
    if not len(events):
        return events, ()
    middle = int(np.partition(events.ts_ns, len(events) // 2)[len(events) // 2])
    away = (np.abs(events.ts_ns - middle) > APART_NS) | (events.end_ns - middle > APART_NS)
    places, ends = _outlasting(events if not away.any() else selected(events, ~away))
    if not away.any() and not len(places):
        return events, ()
    from stepscope.records.trace_quality import QualityFact  # few traces have such times

    facts: list[QualityFact] = []
    if away.any():
        names = tuple(dict.fromkeys(events.name_of(int(i)) for i in np.flatnonzero(away)[:100]))
        device = int((away & events.is_device).sum())
        facts.append(
            QualityFact(
                kind="impossible-times", count=int(away.sum()), of=len(events), names=names[:3], matters=device > 0
            )
        )
        events = selected(events, ~away)
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
                names=tuple(dict.fromkeys(events.name_of(int(i)) for i in places[:100]))[:3],
            )
        )
        events = replace(events, dur_ns=duration)
    return events, tuple(facts)


def _outlasting(events: Events) -> tuple[Ints, Ints]:
    """Return the device events that last until ``OUTLASTS_NS`` beyond the start of the next of their stream, and that
    start. Work of graphs is left as it is."""
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
        beyond = np.flatnonzero(events.end_ns[here[:-1]] - starts[1:] > OUTLASTS_NS)
        places.append(here[beyond])
        ends.append(starts[beyond + 1])
    chosen, until = np.concatenate(places or [none]), np.concatenate(ends or [none])
    if len(chosen):
        graphs = events.correlation[events.of(Category.RUNTIME, Category.DRIVER) & events.named(_GRAPH.match)]
        own = ~np.isin(events.correlation[chosen], graphs)
        chosen, until = chosen[own], until[own]
    return chosen, until
