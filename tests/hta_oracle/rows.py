"""The rows that HolisticTraceAnalysis 0.5.0 works on: our events after its rounding, its links and its filter.

Rebuilt from what it does, including what it does wrong; nothing here is a correct reading of a trace. Times are
float64 microseconds, computed in its order, so that its rounding noise comes out the same.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.traces.events import NONE, Category, Events

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_DEVICE_SYNC = ("Event Sync", "Context Sync")
_OUT_OF_ALL_STEPS = -1
_UNKNOWN_STEP = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaEvents:
    """One rank before the filter: one entry per event of ``events``, in file order.

    ``device``: what HTA takes for device work when it links and filters (a stream and a correlation, or a wait
    for the device). ``link``: the event on the other side of the launch; 0 where there is none, NONE without a
    correlation. ``names_a_step``: annotations whose name contains ProfilerStep.
    """

    events: Events
    start_us: Floats
    dur_us: Floats
    stream: Ints
    device: Mask
    link: Ints
    names_a_step: Mask
    step_names: frozenset[str]
    first_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaRows:
    """One rank after the filter. ``index``: into the events; device work may be in it more than once.

    ``start_us`` is relative to the first event of all ranks. ``step``: the number of the ProfilerStep that a row
    belongs to, negative for none; ``stated_step``: the number in its own name, NONE if it is no ProfilerStep.
    """

    events: Events
    index: Ints
    start_us: Floats
    dur_us: Floats
    stream: Ints
    link: Ints
    step: Ints
    stated_step: Ints

    @property
    def correlation(self) -> Ints:
        return self.events.correlation[self.index]

    def names(self, mask: Mask) -> list[str]:
        names = self.events.names
        return [names[code] for code in self.events.name[self.index[mask]].tolist()]


def hta_events(events: Events, *, ns_rounding: bool) -> HtaEvents:
    """The events of one rank as HTA has them after parsing.

    ``ns_rounding``: where any start has a fraction, starts go up and ends go down to whole microseconds, so that
    a duration can become 0 or -1. The environment variable HTA_DISABLE_NS_ROUNDING=1 switches it off.
    """
    start, duration = _microseconds(events.ts_ns), _microseconds(events.dur_ns)
    end = start + duration
    if ns_rounding and np.any(events.ts_ns % 1000):
        start, end = np.ceil(start), np.floor(end)
        duration = end - start
    stream = events.stream.astype(np.int64)
    for index, number in events.wide_streams.items():
        stream[index] = number
    device = ((stream >= 0) & (events.correlation >= 0)) | events.named(lambda n: n in _DEVICE_SYNC)
    step_names = {n for n in events.names if "ProfilerStep" in n}
    # The profiler's own span has a category that HTA drops, and it may begin before everything else.
    counted = (events.category != Category.OTHER) | (stream != NONE)
    return HtaEvents(
        events=events,
        start_us=start,
        dur_us=duration,
        stream=stream,
        device=device,
        link=_links(events.correlation, device),
        names_a_step=events.named(step_names.__contains__),
        step_names=frozenset(step_names),
        first_us=float(start[counted].min()) if counted.any() else np.inf,
    )


def hta_rows(rank: HtaEvents, *, first_us: float, filtered: bool, include_last: bool) -> HtaRows:
    """The rows of one rank that HTA's analyses see.

    ``first_us``: the earliest start over all ranks. ``filtered``: whether the job has two step names or more;
    then host events from the last step on are dropped, and with them the device work whose launch is dropped or
    was never recorded. With ``include_last`` HTA compares shifted starts with an unshifted end, so it keeps
    every host event of a trace in absolute time.
    """
    start = rank.start_us - first_us
    host = ~rank.device
    index = np.arange(len(start))
    if filtered:
        steps = host & rank.names_a_step
        if include_last:
            ends = (rank.start_us + rank.dur_us)[steps]
            host &= start <= (ends.max() if steps.any() else np.nan)
        else:
            host &= start < (start[steps].max() if steps.any() else np.nan)
        # An inner join: device work appears once for every host event of its correlation.
        correlation = rank.events.correlation
        device = np.flatnonzero(rank.device)
        host_keys = np.sort(correlation[host])
        found = np.searchsorted(host_keys, correlation[device], side="right")
        found -= np.searchsorted(host_keys, correlation[device], side="left")
        index = np.concatenate([np.repeat(device, found), np.flatnonzero(host)])
    return HtaRows(
        events=rank.events,
        index=index,
        start_us=start[index],
        dur_us=rank.dur_us[index],
        stream=rank.stream[index],
        link=rank.link[index],
        step=_steps(rank)[index],
        stated_step=_numbers(rank.events)[rank.events.name[index]],
    )


def _microseconds(times_ns: Ints) -> Floats:
    """The float64 nearest to each decimal number of microseconds, which is what a JSON parser makes of it."""
    whole, rest = np.divmod(times_ns, 1000)
    return whole.astype(np.float64) + rest / 1000.0


def _links(correlation: Ints, device: Mask) -> Ints:
    """The last event of the other side with the same correlation."""
    link = np.minimum(correlation, 0).astype(np.int64)
    known = correlation != NONE
    for mine, others in ((known & device, known & ~device), (known & ~device, known & device)):
        candidates = np.flatnonzero(others)
        order = np.argsort(correlation[candidates], kind="stable")
        candidates = candidates[order]
        keys = correlation[candidates]
        wanted = np.flatnonzero(mine)
        place = np.searchsorted(keys, correlation[wanted], side="right") - 1
        hit = place >= 0
        hit[hit] = keys[place[hit]] == correlation[wanted[hit]]
        link[wanted[hit]] = candidates[place[hit]]
    return link


def _numbers(events: Events) -> Ints:
    """The step number that each name states, NONE for other names."""
    found = (_STEP.match(n) if n.startswith("ProfilerStep") else None for n in events.names)
    return np.array([int(m[1]) if m else NONE for m in found] or [NONE], dtype=np.int64)


def _steps(rank: HtaEvents) -> Ints:
    """The step of every event: host events by start, streams above 0 by their launch, stream 0 never."""
    events, start = rank.events, rank.start_us
    numbers = _numbers(events)[events.name] if len(events) else np.empty(0, dtype=np.int64)
    steps = np.flatnonzero(numbers >= 0)
    ends = (start + rank.dur_us)[steps]
    edges = np.unique(np.concatenate([start[steps], ends]))
    painted = np.full(len(edges) + 1, _OUT_OF_ALL_STEPS, dtype=np.int64)
    first = np.searchsorted(edges, start[steps]) + 1
    last = np.searchsorted(edges, ends) + 1
    for number, low, high in zip(numbers[steps].tolist(), first.tolist(), last.tolist(), strict=True):
        painted[low:high] = number  # of several, the last one in the file counts
    own = painted[np.searchsorted(edges, start, side="right")]
    result = np.where(rank.stream < 0, own, _UNKNOWN_STEP)
    launched = rank.stream > 0
    link = rank.link[launched]
    result[launched] = np.where(link > 0, np.where(rank.stream[link] < 0, own[link], _UNKNOWN_STEP), -1)
    return result
