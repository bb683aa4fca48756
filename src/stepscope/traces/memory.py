"""Memory over time and its peak, from the ``[memory]`` instants that profile_memory=True records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.core.errors import Unavailable
from stepscope.records.trace_work import DeviceMemory, MemoryPeak, PhaseMemory, StepMemory
from stepscope.stats.spans import Spans, distinct
from stepscope.traces.events import Category, Events, Ints, MemoryInstants, RankView
from stepscope.traces.marks import Marks, marks_of
from stepscope.traces.steps import phase_of, phases_of

SLICES = 400

_TYPES = {0: "cpu", 1: "gpu", 20: "gpu"}  # torch's DeviceType: CPU, CUDA (and HIP under its mask), HIP


def memory_timeline(view: RankView) -> tuple[DeviceMemory, ...] | Unavailable:
    """One timeline per device of the rank, GPUs first; Unavailable when the trace recorded no memory events."""
    memory = view.events.memory
    if memory is None or not len(memory):
        return Unavailable("the trace records no memory events (profile_memory=True records them)")
    kinds = memory.device_type.astype(np.int64) * (2**31) + memory.device
    timelines = [_device_memory(view, memory, np.flatnonzero(kinds == kind)) for kind in distinct(kinds).tolist()]
    return tuple(sorted(timelines, key=lambda d: (d.device_type != "gpu", d.device_type, d.device or 0)))


def _device_memory(view: RankView, memory: MemoryInstants, instants: Ints) -> DeviceMemory:
    """Return the memory of one device: its peak, by step and phase, and over time, bytes."""
    marks, phases = marks_of(view), phases_of(view)
    times, size = memory.ts_ns[instants], memory.size_bytes[instants]
    allocated, reserved = memory.allocated_bytes[instants], memory.reserved_bytes[instants]
    kind = _TYPES.get(int(memory.device_type[instants[0]]), "other")
    device = int(memory.device[instants[0]])
    if allocated.max() < 0:  # not recorded: only what was added and taken is known
        allocated = np.cumsum(size)
    has_reserved = kind != "cpu" and bool(reserved.max() > 0)
    at = int(np.argmax(allocated))
    when = int(times[at])
    grid, highest = _by_slice(times, allocated, reserved)
    peak_reserved = int(reserved.max()) if has_reserved else None
    return DeviceMemory(
        rank=view.rank,
        device_type=kind,
        device=device if device >= 0 else None,
        from_capture_start=kind == "cpu",
        peak=MemoryPeak(
            time_ns=when,
            allocated_bytes=int(allocated[at]),
            reserved_bytes=int(reserved[at]) if has_reserved else None,
            step=_step_at(marks, when),
            phase=phase_of(phases, when),
            annotations=_annotations_at(view.events, when),
            operator=_operator_at(view.events, when),
        ),
        peak_reserved_bytes=peak_reserved,
        slack_bytes=int(reserved[at] - allocated[at]) if has_reserved else None,
        allocations=int((size > 0).sum()),
        releases=int((size < 0).sum()),
        requested_bytes=int(size[size > 0].sum()),
        growth_bytes=int(allocated[-1] - (allocated[0] - size[0])),
        times_ns=tuple(grid.tolist()),
        allocated_bytes=tuple(highest[0].tolist()),
        reserved_bytes=tuple(highest[1].tolist()) if has_reserved else None,
        steps=_step_memory(marks, times, allocated, before=int(allocated[0] - size[0])),
        phases=_by_phase(phases, times, allocated, before=int(allocated[0] - size[0])),
    )


def _by_slice(times: Ints, *series: Ints) -> tuple[Ints, list[Ints]]:
    """Begin of each slice that has an event, and the highest value of each series in it."""
    width = max(1, -(-int(times[-1] - times[0] + 1) // SLICES))
    number = (times - times[0]) // width
    first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
    return times[0] + number[first] * width, [np.maximum.reduceat(s, first) for s in series]


def _step_memory(marks: Marks, times: Ints, allocated: Ints, *, before: int) -> tuple[StepMemory, ...]:
    """Return each step's peak, and what was allocated at its end, bytes. before: what was allocated before the first
    instant."""
    rows = []
    level = np.concatenate([[before], allocated])
    for number, start, end in zip(marks.numbers.tolist(), marks.starts.tolist(), marks.ends.tolist(), strict=True):
        low, high = np.searchsorted(times, [start, end])
        # What was allocated before the step began counts, until the step's first event.
        inside = level[low : high + 1]
        rows.append(StepMemory(step=number, peak_bytes=int(inside.max()), end_bytes=int(inside[-1])))
    return tuple(rows)


def _by_phase(phases: Mapping[str, Spans], times: Ints, allocated: Ints, *, before: int) -> tuple[PhaseMemory, ...]:
    """Phases in which anything was allocated or released."""
    level = np.concatenate([[before], allocated])
    rows = []
    for name, spans in phases.items():
        low, high = np.searchsorted(times, spans.starts), np.searchsorted(times, spans.ends)
        there = np.flatnonzero(high > low)
        if not len(there):
            continue
        peaks = [int(level[a : b + 1].max()) for a, b in zip(low[there].tolist(), high[there].tolist(), strict=True)]
        added = [peak - int(level[a]) for peak, a in zip(peaks, low[there].tolist(), strict=True)]
        rows.append(PhaseMemory(phase=name, peak_bytes=max(peaks), added_bytes=max(added)))
    return tuple(rows)


def _step_at(marks: Marks, when: int) -> int | None:
    inside = np.flatnonzero((marks.starts <= when) & (when < marks.ends))
    return int(marks.numbers[inside[-1]]) if len(inside) else None


def _annotations_at(events: Events, when: int) -> tuple[str, ...]:
    chosen = events.where(Category.USER_ANNOTATION)
    around = chosen[(events.ts_ns[chosen] <= when) & (when < events.end_ns[chosen])]
    around = around[np.lexsort((-events.dur_ns[around], events.ts_ns[around]))]
    return tuple(dict.fromkeys(events.name_of(int(i)) for i in around))


def _operator_at(events: Events, when: int) -> str | None:
    chosen = events.where(Category.CPU_OP)
    around = chosen[(events.ts_ns[chosen] <= when) & (when < events.end_ns[chosen])]
    if not len(around):
        return None
    return events.name_of(int(around[np.lexsort((-events.dur_ns[around], events.ts_ns[around]))[-1]]))
