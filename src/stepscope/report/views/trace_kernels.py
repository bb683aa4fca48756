"""Device work of a trace: kernels, sequences of kernels that repeat, memory copies.

Memory: the peak of each device, what was going on then, and the peak of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import (
    CopyRow,
    DeviceMemory,
    KernelRow,
    KernelTable,
    MemoryPeak,
    PhaseMemory,
    SequenceRow,
    StepMemory,
)
from stepscope.report.kernel_names import elided, short_names
from stepscope.report.shared.traces import (
    gaps,
    many_note,
    medians,
    most_column,
    over_ranks,
    over_ranks_note,
    rank_column,
    standing_out,
    time_over_ranks,
)
from stepscope.report.table import (
    Column,
    Raw,
    Table,
    Value,
    bandwidth,
    binary_size,
    duration,
    identity_column,
    lead_column,
    number,
    percent,
    size,
    tabled,
    unknown,
    wording,
)
from stepscope.report.views import View

KERNELS_NAME, NAME_OF_RANKS = 43, 35
"""Characters for a name: of one rank, and beside the column that compares ranks."""

NO_KERNELS = "no kernels in this trace: a CPU job, or the profiler did not record the device"


def kernels_table(summary: TraceSummary) -> Table:
    """Return the table: one row a kernel, over all ranks, most time first."""
    tables = [p.kernels for p in summary.ranks if p.kernels is not None and p.kernels.rows]
    ranks = [t.rank for t in tables]
    whole = sum(t.total_ns for t in tables)
    merged = over_ranks((r for t in tables for r in t.rows), lambda r: r.name, lambda r: r.total_ns)
    names = short_names(
        dict.fromkeys(r.name for t in tables for r in t.rows), limit=KERNELS_NAME if len(ranks) == 1 else NAME_OF_RANKS
    )
    tensor = {None: unknown(), True: Value("yes", True, tone="good"), False: wording("no", raw=False)}

    def work(rows: Sequence[KernelRow]) -> Value:
        return wording("comm" if rows[0].work == "communication" else rows[0].work, rows[0].work)

    return tabled(
        "kernels",
        "Kernels",
        merged,
        lead_column("kernel", "kernel", lambda r: wording(names[r[0].name], r[0].name)),
        Column("work", "class", work),
        Column("tensor_cores", "TC", lambda r: None if r[0].work == "communication" else tensor[r[0].tensor_cores]),
        Column("calls", "calls", medians("calls"), number),
        Column("total", "total", lambda rows: time_over_ranks(rows, "total_ns", whole), duration),
        Column("median", "median", _weighted_median, duration),
        Column("largest", "longest", lambda rows: max(r.max_ns for r in rows), duration, drop=1),
        most_column(ranks, lambda r: r.total_ns),
        footnotes=_kernel_footnotes(tables, shortened=any(n != s for n, s in names.items())) if tables else (),
        notes=(
            *gaps(summary, "kernels", otherwise=NO_KERNELS),
            *_left_out_notes(tables),
        ),
    )


def _weighted_median(rows: Sequence[KernelRow]) -> float:
    """Return the ranks' medians as one, each counting as often as the kernel ran there; one rank's own for one rank."""
    ordered = sorted((r.median_ns, r.calls) for r in rows)
    half, seen = sum(calls for _, calls in ordered) / 2, 0
    for median, calls in ordered:
        seen += calls
        if seen >= half:
            return median
    return ordered[-1][0]


def _kernel_footnotes(tables: Sequence[KernelTable], *, shortened: bool) -> tuple[str, ...]:
    """Say what the columns are, as far as kernels need it."""
    lines = ["total: share of the time of all kernels"]
    if any(t.tensor_core_share is not None for t in tables):
        compute = {t.rank: sum(r.total_ns for r in t.rows if r.work == "compute") for t in tables}
        time = sum(compute.values())
        yes, no, open_ = (
            sum((getattr(t, name) or 0.0) * compute[t.rank] for t in tables) / time if time else 0.0
            for name in ("tensor_core_share", "other_share", "unknown_share")
        )
        if yes or no:
            lines.append(
                f"TC: on tensor cores, where the name shows it; of compute time yes {format_percent(yes)}, "
                f"no {format_percent(no)}, unknown {format_percent(open_)}"
            )
    if shortened:
        lines.append("names are shortened; --csv has them in full")
    return (*lines, *over_ranks_note([t.rank for t in tables]))


def _left_out_notes(tables: Sequence[KernelTable]) -> list[str]:
    """Say how many kernels are left out, and their share of the time."""
    left = [t for t in tables if t.left_out_names]
    ns, whole = sum(t.left_out_ns for t in left), sum(t.total_ns for t in tables)
    if not left:
        return []
    names = max(t.left_out_names for t in left)
    return [f"{counted(names, 'more kernel')} left out on a rank: {format_percent(ns / whole)} of the time"]


SEQUENCES_NAME = 32

ARROW = " → "


def sequences_table(summary: TraceSummary) -> Table:
    """Return the table: one row a sequence, over all ranks, most time in and between its kernels first."""
    passes = [p for p in summary.ranks if p.sequences]
    ranks = [p.facts.rank for p in passes]
    rows = (r for p in passes for r in p.sequences)
    merged = _once_a_cycle(over_ranks(rows, lambda r: r.kernels, lambda r: r.total_ns + r.gap_ns))
    names = short_names((k for rows in merged for k in rows[0].kernels), limit=SEQUENCES_NAME)
    return tabled(
        "sequences",
        "Frequent kernel sequences",
        merged,
        lead_column(
            "kernels",
            "kernels, one after the other",
            lambda rows: wording(_joined_names(rows[0].kernels, names), ARROW.join(rows[0].kernels)),
        ),
        Column("count", "times", medians("count"), number),
        Column("total", "in kernels", medians("total_ns"), duration),
        Column("share", "share", lambda rows: sum(r.share for r in rows) / len(ranks), percent),
        Column("gap", "between", medians("gap_ns"), duration),
        most_column(ranks, lambda r: r.total_ns + r.gap_ns, drop=1),
        footnotes=(
            "share: of the time of all kernels; between: gaps inside the sequence, which a fused kernel or a "
            "CUDA graph would not have",
            "sequences share kernels with each other: their times do not add up; a cycle is shown once, where it "
            "takes most time",
            *over_ranks_note(ranks),
        ),
        notes=gaps(summary, "sequences", otherwise="no sequence of compute kernels repeats at least three times"),
    )


def _once_a_cycle(ranked: Sequence[Sequence[SequenceRow]]) -> list[Sequence[SequenceRow]]:
    """Leave out sequences that are the same cycle as one before, begun at another kernel or gone round more than once."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for rows in ranked:
        kernels = rows[0].kernels
        length = len(kernels)
        period = next(p for p in range(1, length + 1) if length % p == 0 and kernels == kernels[:p] * (length // p))
        cycle = min(kernels[i:period] + kernels[:i] for i in range(period))
        if cycle not in seen:
            seen.add(cycle)
            kept.append(rows)
    return kept


def _joined_names(kernels: Sequence[str], names: Mapping[str, str]) -> str:
    """Join short names; the same kernel several times in a row is said once with how often."""
    # Without blanks inside, so that lines break at the arrows.
    runs = [(names[name].replace(", ", ","), len(list(again))) for name, again in groupby(kernels)]
    return ARROW.join(name if count == 1 else f"{name}\u00a0x{count}" for name, count in runs)


KINDS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "within the device",
    "PtoP": "device to device",
    "HtoH": "host to host",
    "memset": "memset",
    "other": "other",
}


def copies_table(summary: TraceSummary) -> Table:
    """Return the table: one row per kind and host memory, over all ranks, most time first."""
    passes = [p for p in summary.ranks if p.copies is not None and p.copies.rows]
    ranks = [p.facts.rank for p in passes]
    window = sum(p.budget.parts.window_ns for p in passes if p.budget)
    rows = (row for rank_pass in passes for row in (rank_pass.copies.rows if rank_pass.copies else ()))
    merged = over_ranks(rows, lambda r: (r.kind, r.memory), lambda r: r.busy_ns)
    pageable = sum(r.busy_ns for rows in merged for r in rows if r.memory == "pageable")

    def largest(field: str) -> Callable[[Sequence[CopyRow]], float | None]:
        return lambda rows: max((getattr(r, field) for r in rows if getattr(r, field) is not None), default=None)

    def exposed(rows: Sequence[CopyRow]) -> Value:
        return time_over_ranks(rows, "exposed_ns", window, worry=(0.05, 0.15))

    return tabled(
        "copies",
        "Memory copies",
        merged,
        lead_column("kind", "copy", lambda r: wording(KINDS.get(r[0].kind, r[0].kind), r[0].kind)),
        Column("memory", "host memory", "0.memory"),
        Column("calls", "calls", medians("calls"), number),
        Column("busy", "time", lambda rows: time_over_ranks(rows, "busy_ns", window), duration),
        Column("exposed", "exposed", exposed, duration),
        Column("size", "moved", medians("size_bytes"), size),
        Column("rate", "rate", _copy_rate, bandwidth),
        Column("median", "median", largest("median_bytes"), size, drop=2),
        Column("largest", "largest", largest("largest_bytes"), size, drop=1),
        most_column(ranks, lambda r: r.busy_ns),
        footnotes=(
            "time, exposed (under neither computation nor communication): share of the window; "
            "rate: of the copies whose size is known, GB = 1e9 bytes",
            *over_ranks_note(ranks),
        ),
        notes=(
            *gaps(
                summary,
                "copies",
                otherwise="no copies on a device in this trace",
            ),
            *(
                (
                    f"{format_duration(pageable)} in copies of pageable memory: pinned memory (pin_memory=True, "
                    "non_blocking=True) copies faster and beside computation",
                )
                if window and pageable >= 0.005 * window
                else ()
            ),
        ),
    )


def _copy_rate(rows: Sequence[CopyRow]) -> float | None:
    """Return bytes / time over all ranks: each rank's rate weighs as its bytes do."""
    rated = [(r.size_bytes, r.bytes_per_s) for r in rows if r.size_bytes and r.bytes_per_s]
    seconds = sum(moved / rate for moved, rate in rated)
    return sum(moved for moved, _ in rated) / seconds if seconds else None


def memory_table(summary: TraceSummary) -> Table:
    """Return the table: one row per rank and device, then one per phase and one per step."""
    devices = [m for p in summary.ranks for m in p.memory]
    shown = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    items: list[Item] = [(m, None) for m in standing_out(devices, lambda m: m.peak.allocated_bytes)]
    for phase in dict.fromkeys(phase_memory.phase for m in devices for phase_memory in m.phases):
        of_phase: list[Item] = [(m, p) for m in devices for p in m.phases if p.phase == phase]
        items += standing_out(of_phase, _peak_bytes)
    for step in sorted({s.step for m in devices for s in m.steps if s.step in shown[m.rank]}):
        of_step: list[Item] = [(m, s) for m in devices for s in m.steps if s.step == step]
        items += standing_out(of_step, _peak_bytes)

    def device(value: Callable[[DeviceMemory], Raw | Value]) -> Callable[[Item], Raw | Value]:
        return lambda item: value(item[0]) if item[1] is None else None

    return tabled(
        "memory",
        "Memory",
        items,
        rank_column(lambda item: item[0].rank),
        identity_column(
            "device",
            "device",
            lambda item: " ".join(str(part) for part in (item[0].device_type, item[0].device) if part is not None),
        ),
        lead_column("step", "step, phase", _memory_of),
        Column("peak", "peak", _peak_bytes, binary_size),
        Column("reserved", "reserved", device(lambda m: m.peak_reserved_bytes), binary_size),
        Column("slack", "slack", device(lambda m: m.slack_bytes), binary_size, drop=2),
        Column("added", "added", lambda i: i[1].added_bytes if isinstance(i[1], PhaseMemory) else None, binary_size),
        Column("end", "left at end", _end_bytes, binary_size),
        Column("requested", "requested", device(lambda m: m.requested_bytes), binary_size, drop=3),
        Column("allocations", "allocations", device(lambda m: m.allocations), number, drop=4),
        Column("during", "at the peak", device(lambda m: _during_text(m.peak))),
        footnotes=_memory_footnotes(devices),
        notes=gaps(
            summary, "memory", otherwise="the trace records no memory events (profile_memory=True records them)"
        ),
    )


Item = tuple[DeviceMemory, StepMemory | PhaseMemory | None]
"""A device over the whole capture, in one phase, or in one step."""


def _memory_of(item: Item) -> str | int:
    part = item[1]
    return "all" if part is None else part.phase if isinstance(part, PhaseMemory) else part.step


def _end_bytes(item: Item) -> int | Value | None:
    if item[1] is None:
        return _growth_value(item[0])
    return item[1].end_bytes if isinstance(item[1], StepMemory) else None


def _memory_footnotes(devices: list[DeviceMemory]) -> tuple[str, ...]:
    """Say what peak, growth and the levels of a CPU are."""
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


def _peak_bytes(item: Item) -> int:
    return item[0].peak.allocated_bytes if item[1] is None else item[1].peak_bytes


def _growth_value(m: DeviceMemory) -> Value:
    value = binary_size(m.growth_bytes)
    return replace(value, text=f"+{value.text}") if (m.growth_bytes or 0) > 0 else value


def _during_text(peak: MemoryPeak) -> str | None:
    """Write ``step 12, backward, aten::mm``: as much as is known."""
    innermost = peak.annotations[-1] if peak.annotations else None
    if innermost is not None and innermost.startswith("ProfilerStep#"):
        innermost = None
    parts = [
        None if peak.step is None else f"step {peak.step}",
        peak.phase or innermost,
        None if peak.operator is None else elided(peak.operator, 32),
    ]
    return ", ".join(p for p in parts if p) or None


VIEWS = (
    View("trace_kernels", table=kernels_table),
    View("trace_sequences", table=sequences_table),
    View("trace_copies", table=copies_table),
    View("trace_memory", table=memory_table),
)
