"""Memory: the peak of each device, what was going on then, and the peak of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import DeviceMemory, MemoryPeak, PhaseMemory, StepMemory
from stepscope.report.kernel_names import elided
from stepscope.report.shared.traces import gaps, many_note, rank_column, standing_out
from stepscope.report.table import Column, Raw, Table, Value, binary_size, number, tabled
from stepscope.report.view import View


def build(summary: TraceSummary) -> Table:
    """One row per rank and device, then one per phase and one per step."""
    devices = [m for p in summary.ranks for m in p.memory]
    shown = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    items: list[Item] = [(m, None) for m in standing_out(devices, lambda m: m.peak.allocated_bytes)]
    for phase in dict.fromkeys(each.phase for m in devices for each in m.phases):
        mine: list[Item] = [(m, p) for m in devices for p in m.phases if p.phase == phase]
        items += standing_out(mine, _peak)
    for step in sorted({s.step for m in devices for s in m.steps if s.step in shown[m.rank]}):
        each: list[Item] = [(m, s) for m in devices for s in m.steps if s.step == step]
        items += standing_out(each, _peak)

    def device(value: Callable[[DeviceMemory], Raw | Value]) -> Callable[[Item], Raw | Value]:
        return lambda item: value(item[0]) if item[1] is None else None

    return tabled(
        "memory",
        "Memory",
        (
            rank_column(lambda item: item[0].rank),
            Column("device", "device", lambda item: _device(item[0]), role="identity"),
            Column("step", "step, phase", _of, role="identity", lead=True),
            Column("peak", "peak", _peak, binary_size),
            Column("reserved", "reserved", device(lambda m: m.peak_reserved_bytes), binary_size),
            Column("slack", "slack", device(lambda m: m.slack_bytes), binary_size, drop=2),
            Column(
                "added", "added", lambda i: i[1].added_bytes if isinstance(i[1], PhaseMemory) else None, binary_size
            ),
            Column("end", "left at end", _end, binary_size),
            Column("requested", "requested", device(lambda m: m.requested_bytes), binary_size, drop=3),
            Column("allocations", "allocations", device(lambda m: m.allocations), number, drop=4),
            Column("during", "at the peak", device(lambda m: _during(m.peak))),
        ),
        items,
        footnotes=_footnotes(devices),
        notes=gaps(
            summary, "memory", otherwise="the trace records no memory events (profile_memory=True records them)"
        ),
    )


Item = tuple[DeviceMemory, StepMemory | PhaseMemory | None]
"""A device over the whole capture, in one phase, or in one step."""


def _of(item: Item) -> str | int:
    part = item[1]
    return "all" if part is None else part.phase if isinstance(part, PhaseMemory) else part.step


def _end(item: Item) -> int | Value | None:
    if item[1] is None:
        return _growth(item[0])
    return item[1].end_bytes if isinstance(item[1], StepMemory) else None


def _footnotes(devices: list[DeviceMemory]) -> tuple[str, ...]:
    lines = ["peak: the most allocated at one time; MiB = 2^20 bytes"]
    if any(m.from_capture_start for m in devices):
        lines.append("on the CPU the profiler counts from the start of the capture, what was there before is not in it")
    if any(m.slack_bytes is not None for m in devices):
        lines.append("slack: reserved by the allocator and not allocated, at the peak")
    if any(m.phases for m in devices):
        lines.append("phase: the peak while the host was in it; added: the most it grew in one pass through the phase")
    lines.append(
        "left at end: growth over the capture, or what was allocated when the step ended; "
        "requested: sum of all allocations"
    )
    return (*lines, *many_note(len(devices), "those with the highest peak"))


def _peak(item: Item) -> int:
    return item[0].peak.allocated_bytes if item[1] is None else item[1].peak_bytes


def _device(m: DeviceMemory) -> str:
    return m.device_type if m.device is None else f"{m.device_type} {m.device}"


def _growth(m: DeviceMemory) -> Value:
    value = binary_size(m.growth_bytes)
    return replace(value, text=f"+{value.text}") if (m.growth_bytes or 0) > 0 else value


def _during(peak: MemoryPeak) -> str | None:
    """``step 12, backward, aten::mm``: as much as is known."""
    innermost = peak.annotations[-1] if peak.annotations else None
    if innermost is not None and innermost.startswith("ProfilerStep#"):
        innermost = None
    parts = [
        None if peak.step is None else f"step {peak.step}",
        peak.phase or innermost,
        None if peak.operator is None else elided(peak.operator, 32),
    ]
    return ", ".join(p for p in parts if p) or None


VIEWS = (View("trace_memory", "Memory", needs=("trace",), table=build),)
