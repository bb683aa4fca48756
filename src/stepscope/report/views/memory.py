"""Memory of a rank: peaks over batches and strategies; of memory snapshots kinds, lines and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted, listed
from stepscope.records.imported import KINDS, UNKNOWN, MemoryHolder, MemorySnapshot
from stepscope.records.training import TrainingRun
from stepscope.report.names import clean, file_part
from stepscope.report.shared.runs import by_dataset, facets, failure, measured, memory_unit, rate_column
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, by_length, failed_text, stacked_areas, stacks_chart
from stepscope.report.table import (
    Column,
    Table,
    Value,
    binary_size,
    duration,
    group_column,
    identity_column,
    lead_column,
    percent,
    size,
    tabled,
    whole,
    wording,
)
from stepscope.report.vega import COLORS, FAINT, PAGE, Chart, by_series, chart, layer, number_axis
from stepscope.report.views import View
from stepscope.results.evidence import CellEvidence, in_line
from stepscope.results.held import KINDS as HELD_KINDS
from stepscope.results.held import conclusions, held_states
from stepscope.results.labels import failure_label
from stepscope.results.sweeps import BatchMemory, memory_by_batch

MEMORY_KINDS = dict(
    zip(("parameters", "gradients", "optimizer", "activations", "buffers", "slack"), COLORS[:6], strict=True)
)
MEMORY_UNKNOWN = "kind unknown"


def memory_charts(runs: Sequence[TrainingRun]) -> Iterator[Chart]:
    """Yield one chart a data set: bytes a rank by kind, small batches first.

    The peak is one part where kinds are unknown.
    """
    shown = [run for run in runs if _total_bytes(run) or run.status in ("oom", "host_oom")]
    for part in by_dataset(sorted(shown, key=_order_key), MAX_ROWS):
        if sum(_total_bytes(run) > 0 for run in part.runs) < 2:
            continue
        named = dict.fromkeys((*MEMORY_KINDS, *(kind for run in part.runs for kind in run.memory)))
        kinds = [kind for kind in named if any(kind in run.memory for run in part.runs)]
        if any(_unknown_bytes(run) for run in part.runs):
            kinds.append(MEMORY_UNKNOWN)
        size, unit = memory_unit(max(_total_bytes(run) for run in part.runs))
        hues = COLORS[:1] if kinds == [MEMORY_UNKNOWN] else tuple(MEMORY_KINDS.get(kind, FAINT) for kind in kinds)
        rows = [_memory_row(run, name, kinds) for run, name in part.named]
        kinds = list(map(clean, kinds))
        how = f"by kind ({', '.join(kinds)})" if len(kinds) > 1 else "as a whole"
        if kinds == [MEMORY_UNKNOWN]:
            how = "as a whole: what holds it was not recorded"
        done = by_length(rows)
        caption = (
            f"Peak memory of the rank that needs most, {how}, on {part.title}, {counted(len(rows), 'run')}. Most:"
            f" {done[0].name} with {done[0].text}; least: {done[-1].name} with {done[-1].text}.{failed_text(rows)}"
        )
        spec = stacks_chart(part.title, rows, f"peak memory of a rank ({unit})", 1 / size, kinds, hues)
        yield Chart(part.key, part.title, caption, spec)


def _total_bytes(run: TrainingRun) -> int:
    return max(sum(run.memory.values()), run.peak_memory_bytes or 0) if run.status == "ok" else 0


def _unknown_bytes(run: TrainingRun) -> int:
    """Return the bytes of the peak that no kind accounts for."""
    return _total_bytes(run) - sum(run.memory.values()) if run.status == "ok" else 0


def _order_key(run: TrainingRun) -> tuple[str, str, str, int, int]:
    run_facets = facets(run)
    batch = run.micro_batch or run.global_batch or 0
    return run_facets["model"], run_facets["strategy"], run_facets["precision"], run.world_size or 0, batch


def _memory_row(run: TrainingRun, name: str, kinds: Sequence[str]) -> StackRow:
    if run.status != "ok":
        return StackRow(name, failure=failure(run))
    by_kind = {**run.memory, MEMORY_UNKNOWN: _unknown_bytes(run)}
    return StackRow(name, tuple(float(by_kind.get(kind, 0)) for kind in kinds), format_bytes_binary(_total_bytes(run)))


_KINDS = {"parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ"}


def memory_batches_table(runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()) -> Table:
    """Return the table: one row a batch, of runs that differ in nothing else."""
    batches = [batch for group in memory_by_batch(runs, cells) for batch in group]
    devices = {batch.run.device for batch in batches}
    return tabled(
        "memory_batches",
        "Memory by batch size",
        batches,
        group_column("group", "runs", lambda batch: in_line(batch.run)),
        lead_column("micro_batch", "batch of a rank", "micro_batch", whole, short="batch"),
        Column("peak_memory_bytes", "peak memory", "peak_bytes", binary_size, short="peak"),
        Column("per_sample_bytes", "per further sample", _per_sample, binary_size, short="per sample"),
        *(Column(kind, kind, _held_getter(kind), binary_size, short=short, drop=2) for kind, short in _KINDS.items()),
        Column("step_ns", "step", lambda batch: measured(batch.run.step_ns, duration, tight=True), duration, drop=1),
        rate_column(
            [batch.run for batch in batches], lambda batch: batch.run.samples_per_s, run_of=lambda batch: batch.run
        ),
        failure=lambda batch: failure_label(batch.run) if batch.peak_bytes is None else None,
        footnotes=(
            *(
                (
                    "peak memory: on a CPU the resident set of the rank's process, with Python and torch in it;"
                    " what the batch takes is its growth.",
                )
                if "cpu" in devices
                else ()
            ),
            *(("peak memory: on a GPU what torch's allocator gave out.",) if "cuda" in devices else ()),
            *(
                (f"{', '.join(_KINDS)}: of the tensors that a step holds, counted one by one.",)
                if any(batch.held_bytes for batch in batches)
                else ()
            ),
            "per further sample: growth of the peak since the next smaller batch, for each sample more.",
        ),
    )


def _held_getter(kind: str) -> Callable[[BatchMemory], int | None]:
    return lambda batch: batch.held_bytes.get(kind)


def _per_sample(batch: BatchMemory) -> Value | float | None:
    if batch.per_sample_bytes is not None and batch.per_sample_bytes <= 0:
        return Value("none seen", batch.per_sample_bytes, tone="dim")
    return batch.per_sample_bytes


def held_table(cells: Sequence[CellEvidence]) -> tuple[Table, ...]:
    """Return one table over all cells; nothing where no cell counted its tensors."""
    holdings = held_states(cells)
    if not holdings:
        return ()
    table = tabled(
        "held",
        "Memory of a rank by kind, against time",
        holdings,
        lead_column("label", "strategy", "cell.run.strategy"),
        identity_column("world_size", "ranks", "cell.run.world_size", whole),
        *(_kind_column(kind) for kind in HELD_KINDS),
        Column("total", "all", "total", size),
        Column("buffers", "buffers", "planned_buffers", size, drop=1),
        Column("states_off", "states off plan", lambda h: _off_value(h.states, h.planned_states)),
        Column(
            "activations_off", "act. off plan", lambda h: _off_value(h.sizes.get("activations"), h.planned_activations)
        ),
        Column("comm_bytes", "bytes/step", "cell.run.comm_bytes_per_step", size),
        Column("step_ns", "step", lambda h: measured(h.cell.run.step_ns, duration, tight=True), duration),
        footnotes=(
            *conclusions(holdings),
            "tensors of the rank that holds most, counted in one step; gathered: whole parameters of a sharded model "
            "between forward and backward; activations: kept for the backward pass",
            "buffers: what communication holds beside them, as planned: buckets, and units that are whole for a moment",
            "off plan: measured over planned, less 1; states: parameters, gradients and optimizer",
        ),
    )
    return (table,)


def _kind_column(kind: str) -> Column:
    return Column(kind, kind, lambda h: h.sizes.get(kind), size, drop=2)


def _off_value(counted_bytes: int | None, planned: int | None) -> Value:
    if counted_bytes is None or not planned:
        return wording(None)
    share = counted_bytes / planned - 1
    return Value(f"{share:+.1%}", share)


def memory_snapshots_table(memory: Sequence[MemorySnapshot]) -> Table:
    """Return the table: one row a device of a snapshot."""
    return tabled(
        "memory_snapshots",
        "Memory snapshots",
        memory,
        lead_column("file", "snapshot", lambda m: Path(m.path).name),
        identity_column("device", "device", "device", whole),
        Column("peak_requested_bytes", "peak in use", "peak_requested_bytes", binary_size),
        Column("peak_reserved_bytes", "peak reserved", "peak_reserved_bytes", binary_size),
        Column("allocated_bytes", "in use", "allocated_bytes", binary_size),
        Column("segment_bytes", "reserved", "segment_bytes", binary_size),
        Column("capacity_bytes", "capacity", "capacity_bytes", binary_size, drop=1),
        Column("oom_events", "failed requests", lambda m: m.oom_events or None, whole, drop=2),
        footnotes=("peaks: of the recorded history; unknown where none was recorded",),
        notes=tuple(note for snapshot in memory for note in snapshot.notes),
    )


COLOR = dict(zip(KINDS, (*COLORS[: len(KINDS) - 1], FAINT), strict=True))


def memory_kinds_table(memory: Sequence[MemorySnapshot]) -> Table:
    """Return the table: one row a kind and device, and their sum."""
    return tabled(
        "memory_kinds",
        "Memory by kind",
        [row for snapshot in memory for row in _kind_rows(snapshot)],
        group_column("snapshot", "", "0"),
        lead_column("kind", "kind", "1"),
        Column("peak_bytes", "at the peak", "2", binary_size),
        Column("peak_share", "share", "3", percent),
        Column("snapshot_bytes", "at the snapshot", "4", binary_size),
        footnotes=_snapshot_footnotes(memory),
    )


def _kind_rows(memory: MemorySnapshot) -> list[tuple[str, str, int | None, float | None, int]]:
    """Return (snapshot, kind, bytes at the peak, share, bytes now) of each kind."""
    peak, now = dict(memory.peak_kinds), dict(memory.kinds)
    kinds = [kind for kind in KINDS if kind in peak or kind in now]
    sums = [(kind, peak.get(kind, 0), now.get(kind, 0)) for kind in kinds]
    sums += [("all", memory.peak_requested_bytes or 0, memory.requested_bytes or 0)] if kinds else []
    return [
        (
            memory.name,
            kind,
            at_peak if peak else None,
            at_peak / memory.peak_requested_bytes if memory.peak_requested_bytes else None,
            at_end,
        )
        for kind, at_peak, at_end in sums
    ]


def _snapshot_footnotes(memory: Sequence[MemorySnapshot]) -> tuple[str, ...]:
    """Say what is counted as which kind."""
    lines = ["bytes that tensors asked for; buffers count as parameters, DDP's buckets as gradients"]
    if any(not snapshot.named for snapshot in memory):
        lines.append(
            "kinds follow from who asked for a block and what it outlived; snapshots of `stepscope profile --memory` state "
            "parameters, gradients and optimizer state"
        )
    if any(UNKNOWN in dict((*snapshot.kinds, *snapshot.peak_kinds)) for snapshot in memory):
        lines.append("unknown: allocated before the history began, or kept by the script for longer than a step")
    return tuple(lines)


def memory_kinds_charts(memory: Sequence[MemorySnapshot]) -> Iterator[Chart]:
    """Yield kinds on top of each other over time, each moment the highest of its slice, of devices with a history."""
    for snapshot in memory:
        over = snapshot.over_time
        if over is None or len(over.events) < 3:
            continue
        at, axis = tuple(map(float, over.events)), "allocator's events"
        if over.times_ns is not None and over.times_ns[-1] > 0:
            per, unit = (1e9, "s") if over.times_ns[-1] >= 10e9 else (1e6, "ms")
            at, axis = tuple(time / per for time in over.times_ns), f"time ({unit})"
        peak = snapshot.peak_requested_bytes or 0
        size, unit = memory_unit(peak) if peak >= 2**20 else (2.0**10, "KiB")
        parts = (
            (kind, sizes, f"{kind}: at most {format_bytes_binary(max(sizes))}") for kind, sizes in over.bytes_by_kind
        )
        kinds = [kind for kind, _ in over.bytes_by_kind]
        hue = by_series(kinds, [COLOR[kind] for kind in kinds], width=PAGE)
        spec = chart(
            snapshot.name,
            *[
                layer("area", points, y="from", y2="to", color=hue, interpolate="step-after")
                for points in stacked_areas(at, parts, 1 / size)
            ],
            width=PAGE,
            height=150,
            x=number_axis("x", axis, low=0.0, top=at[-1]),
            y=number_axis("from", f"memory of live tensors ({unit})", low=0.0),
        )
        amounts = [
            f"{kind} {format_bytes_binary(size)} ({format_percent(size / peak)})" for kind, size in snapshot.peak_kinds
        ]
        span = "" if snapshot.history_ns is None else f" over {format_duration(snapshot.history_ns)}"
        caption = (
            f"What live tensors asked for{span}, by kind, the highest moment of each slice. Peak"
            f" {format_bytes_binary(peak)}: {listed(amounts, at_most=6)}."
        )
        stem = file_part(f"{Path(snapshot.path).stem}-{snapshot.device}")
        yield Chart(stem, snapshot.name, caption, spec)


_MemoryHoldersRow = tuple[MemorySnapshot, MemoryHolder]


def memory_holders_tables(memory: Sequence[MemorySnapshot]) -> tuple[Table, ...]:
    """Return the tables by line and by module, the largest first; without a history by line at the snapshot."""
    lines = [(snapshot, holder) for snapshot in memory for holder in snapshot.peak_holders or snapshot.holders]
    modules = [(snapshot, holder) for snapshot in memory for holder in snapshot.peak_modules]
    footnotes = ("the largest ones; line: the innermost outside torch that asked for the memory",)
    unnamed = "where a module has no name: the lines that call it (`stepscope profile --memory --modules` names them)"
    return (
        _holders_table("memory_lines", "Memory by line", "line", lines, footnotes),
        _holders_table(
            "memory_modules", "Memory by module", "module", modules, ("the largest ones at the peak", unnamed)
        ),
    )


def _holders_table(
    key: str, title: str, what: str, rows: Sequence[_MemoryHoldersRow], footnotes: tuple[str, ...]
) -> Table:
    """Return a table of what holds memory at the peak."""
    return tabled(
        key,
        title,
        rows,
        group_column("snapshot", "", "0.name"),
        lead_column(what, what, "1.where"),
        Column("kind", "kind", "1.kind"),
        Column("bytes", "held", "1.size_bytes", binary_size),
        Column("share", "share", _peak_share, percent),
        Column("blocks", "blocks", "1.blocks", whole, drop=1),
        footnotes=footnotes,
    )


def _peak_share(row: _MemoryHoldersRow) -> float | None:
    memory, holder = row
    whole_ = memory.peak_requested_bytes or memory.requested_bytes
    return holder.size_bytes / whole_ if whole_ else None


VIEWS = (
    View("memory", "Peak memory", charts=memory_charts),
    View("memory_batches", table=memory_batches_table),
    View("held", tables=held_table),
    View("memory_snapshots", table=memory_snapshots_table),
    View("memory_kinds", "Memory by kind", table=memory_kinds_table, charts=memory_kinds_charts),
    View("memory_holders", tables=memory_holders_tables),
)
