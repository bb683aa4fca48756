"""Memory: the peak of each device, what was going on then, and the peak of each step."""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary
from stepscope.records.trace_memory import DeviceMemory, MemoryPeak
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.kernel_names import elided
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import gaps, many_note, number, standing_out, words


def build(summary: TraceSummary) -> Table:
    """One row per rank and device, then one per step."""
    devices = [m for p in summary.ranks for m in p.memory]
    shown = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    rows = [_row(m) for m in standing_out(devices, lambda m: m.peak.allocated_bytes)]
    for step in sorted({s.step for m in devices for s in m.steps if s.step in shown[m.rank]}):
        each = [(m, s) for m in devices for s in m.steps if s.step == step]
        rows += [
            Row(
                values=(
                    *_which(m, Value(text=str(step), raw=step)),
                    _size(s.peak_bytes),
                    *(unknown() for _ in range(2)),
                    _size(s.end_bytes),
                    *(unknown() for _ in range(3)),
                )
            )
            for m, s in standing_out(each, lambda x: x[1].peak_bytes)
        ]
    return Table(
        key="memory",
        title="Memory",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="device", title="device", align="left", role="identity"),
            Column(key="step", title="step", role="identity", lead=True),
            Column(key="peak", title="peak", unit="bytes"),
            Column(key="reserved", title="reserved", unit="bytes"),
            Column(key="slack", title="slack", unit="bytes", drop=2),
            Column(key="end", title="left at end", unit="bytes"),
            Column(key="requested", title="requested", unit="bytes", drop=3),
            Column(key="allocations", title="allocations", drop=4),
            Column(key="during", title="at the peak", align="left"),
        ),
        rows=tuple(rows),
        footnotes=_footnotes(devices) if rows else (),
        notes=gaps(
            summary,
            "memory",
            lambda p: bool(p.memory),
            otherwise="the trace records no memory events (profile_memory=True records them)",
        ),
    )


TABLE = TableKind(key="memory", title="Memory", needs=("trace",), build=build)


def _footnotes(devices: list[DeviceMemory]) -> tuple[str, ...]:
    lines = ["peak: the most allocated at one time; MiB = 2^20 bytes"]
    if any(m.from_capture_start for m in devices):
        lines.append("on the CPU the profiler counts from the start of the capture, what was there before is not in it")
    if any(m.slack_bytes is not None for m in devices):
        lines.append("slack: reserved by the allocator and not allocated, at the peak")
    lines.append(
        "left at end: growth over the capture, or what was allocated when the step ended; "
        "requested: sum of all allocations"
    )
    return (*lines, *many_note(len(devices), "those with the highest peak"))


def _which(m: DeviceMemory, step: Value) -> tuple[Value, ...]:
    device = m.device_type if m.device is None else f"{m.device_type} {m.device}"
    return Value(text=str(m.rank), raw=m.rank), words(device), step


def _row(m: DeviceMemory) -> Row:
    return Row(
        values=(
            *_which(m, Value(text="all", raw="all")),
            _size(m.peak.allocated_bytes),
            _size(m.peak_reserved_bytes),
            _size(m.slack_bytes),
            _size(m.growth_bytes, signed=True),
            _size(m.requested_bytes),
            number(m.allocations),
            _during(m.peak),
        )
    )


def _size(size_bytes: int | None, *, signed: bool = False) -> Value:
    if size_bytes is None:
        return unknown()
    sign = "+" if signed and size_bytes > 0 else ""
    return Value(text=sign + format_bytes_binary(size_bytes), raw=size_bytes)


def _during(peak: MemoryPeak) -> Value:
    """``step 12, backward, aten::mm``: as much as is known."""
    innermost = peak.annotations[-1] if peak.annotations else None
    if innermost is not None and innermost.startswith("ProfilerStep#"):
        innermost = None
    parts = [
        None if peak.step is None else f"step {peak.step}",
        peak.phase or innermost,
        None if peak.operator is None else elided(peak.operator, 32),
    ]
    known = [p for p in parts if p]
    return words(", ".join(known)) if known else unknown()
