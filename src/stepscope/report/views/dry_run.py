"""A dry run: its step on each number of GPUs, by parts, kernels and collectives; its memory by kind, over the step, and what
is alive where it is most; what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from stepscope.core.units import format_bytes, format_duration, format_percent
from stepscope.core.words import listed
from stepscope.diagnose.dry_words import KERNEL, PARTS
from stepscope.predict.step.alternatives import KNEE
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.records.dry_run import MEMORY_KINDS
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import COLOURS, COMPUTATION, TITLES
from stepscope.records.prediction import DryFit, DryKernels, DryStep, DryTraffic
from stepscope.report.shared.stacks import stacked_areas
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    duration,
    flops,
    group_column,
    lead_column,
    number,
    percent,
    size,
    tabled,
    whole,
    with_share,
    wording,
)
from stepscope.report.vega import (
    BAD,
    COLORS,
    INK,
    PAGE,
    UPRIGHT,
    Chart,
    by_series,
    chart,
    color,
    layer,
    name_axis,
    number_axis,
)
from stepscope.report.views import View
from stepscope.results.dry_changes import DryChange, dry_changes
from stepscope.results.dry_job import DryJob, efficiency, per_gpu, speed, unit_of

KIND = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "gathered": "gathered parameters",
    "buffers": "buffers",
    "temporary": "temporary",
    "base": "context and libraries",
    "slack": "fragmentation",
    "total": "total",
}
TONES: dict[str, Tone] = {"fits": "plain", "tight": "warn", "too large": "bad"}
MOST = 15
"""Rows of what is alive at the peak."""
MOST_SPANS = 1500
"""Spans of one picture of the step."""
SENT = "communication: {}"
SENT_COLORS = (color("k-hidden"), COLORS[3], COLORS[1], COLORS[6])
PHASE_COLORS = {TITLES[key]: color(name) for key, name in COLOURS.items() if key in COMPUTATION}
_Row = tuple[DryJob, DryStep]


def _rows(dry: Sequence[DryJob]) -> list[_Row]:
    return [(job, step) for job in dry for step in job.steps.values()]


def _units(dry: Sequence[DryJob]) -> str:
    """Name what is counted: GPUs, or ranks of the host."""
    return "ranks" if dry and dry[0].profile is not None else "GPUs"


def dry_steps_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a number of GPUs."""
    rows = _rows(dry)
    unit = unit_of([step for _, step in rows]) if rows else "samples"

    def base(job: DryJob) -> DryStep:
        return job.steps[min(job.steps)]

    def interval(row: _Row) -> Value:
        step = row[1]
        text = f"{format_duration(step.low_ns)} to {format_duration(step.high_ns)}"
        return Value(text, f"{step.low_ns:.0f} {step.high_ns:.0f}")

    def efficient(row: _Row) -> Value:
        share = efficiency(row[1], base(row[0]))
        return percent(share, tone="plain" if share >= KNEE else "warn")

    return tabled(
        "dry_steps",
        "The step on each number of GPUs",
        rows,
        *([group_column("job", "", "0.name")] if len(dry) > 1 else []),
        lead_column("gpus", _units(dry), "1.ranks", number),
        Column("step_ns", "step", "1.step_ns", duration),
        Column("interval_ns", "80% interval", interval, unit="ns", drop=2),
        Column(f"{unit}_per_s", f"{unit}/s", lambda row: speed(row[1]), number),
        Column("per_gpu", f"per {_units(dry)[:-1]}", lambda row: per_gpu(row[1]), number),
        Column("efficiency", "efficiency", efficient, percent, short="eff"),
        Column("mfu", "MFU", "1.mfu", percent),
        Column("hfu", "HFU", "1.hfu", percent, drop=3),
        Column(
            "exposed_comm_ns",
            EXPOSED_COMM,
            lambda row: with_share(row[1].exposed_ns, row[1].exposed_ns / row[1].step_ns),
            short="exposed",
            unit="ns",
            drop=4,
        ),
        Column(
            "memory_bytes",
            "memory",
            lambda row: size(row[1].memory.needs_bytes, tone=TONES[row[1].memory.verdict]),
            size,
        ),
        Column("limit", "limited by", lambda row: KERNEL.get(row[1].limit, row[1].limit), drop=1),
        footnotes=(
            f"efficiency: speed of a {_units(dry)[:-1]} against the fewest; MFU: the model's FLOP, HFU: all that are "
            "computed",
        ),
    )


def dry_parts_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a part of the step, one column a number of GPUs."""
    job = dry[0]
    keys = [key for key in PARTS if any(step.parts.get(key, 0.0) > 0 for step in job.steps.values())]

    def column(world: int, step: DryStep) -> Column:
        def part(key: str) -> Value:
            ns = step.parts.get(key, 0.0)
            return with_share(ns, ns / step.step_ns)

        return Column(f"on_{world}_ns", f"{world} {_units(dry)}", part, unit="ns", align="right")

    return tabled(
        "dry_parts",
        "Parts of the step",
        keys,
        lead_column("part", "part of the step", lambda key: PARTS[key]),
        *(column(world, step) for world, step in job.steps.items()),
        footnotes=(
            "communication is what no computation hides; waiting for the host: its launches are slower than the GPU",
        ),
    )


def dry_kernels_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a phase and kind of kernel, of the largest world."""
    job = dry[0]
    step = job.largest

    def rate(row: DryKernels) -> float | None:
        return row.flop / row.time_ns * 1e9 if row.flop and row.time_ns else None

    return tabled(
        "dry_kernels",
        f"Kernels of one {step.unit} of {step.ranks}",
        sorted(
            step.kernels, key=lambda row: (list(PARTS).index(row.phase) if row.phase in PARTS else 99, -row.time_ns)
        ),
        group_column("phase", "", lambda row: TITLES.get(row.phase, row.phase)),
        lead_column("kind", "kind", lambda row: KERNEL.get(row.kind, row.kind)),
        Column("launches", "kernels", "launches", whole),
        Column("time_ns", "time", "time_ns", duration),
        Column("share", "share", lambda row: row.time_ns / step.step_ns, percent),
        Column("flops", "rate", rate, flops),
    )


def dry_traffic_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a collective and group, of the largest world."""
    step = dry[0].largest

    def where(row: DryTraffic) -> str:
        return "in a node" if row.domains == 1 else f"over {row.domains} nodes"

    return tabled(
        "dry_traffic",
        f"Collectives of one {step.unit} of {step.ranks}",
        step.traffic,
        lead_column("op", "operation", "op"),
        lead_column("axis", "dimension", "axis"),
        Column("ranks", "ranks", "ranks", whole),
        Column("where", "where", where, drop=1),
        Column("calls", "calls", "calls", whole),
        Column("size_bytes", "bytes", "size_bytes", size),
        Column("time_ns", "time alone", "time_ns", duration),
        Column("share", "of the step", lambda row: row.time_ns / step.step_ns, percent),
        footnotes=("exact: calls, groups and bytes; modelled: the time, one after the other, hidden or not",),
    )


def dry_changes_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a change that was carried out or priced, on the largest world, most gain first."""
    changes: list[DryChange] = [change for job in dry for change in dry_changes(job)]
    return tabled(
        "dry_changes",
        "Changes, each tried alone",
        changes,
        lead_column("what", "change", "text"),
        Column("how", "found by", "how", drop=1),
        Column("step_ns", "step", "step.step_ns", duration),
        Column("gain", "speed", "gain", Format("{:+.1%}".format)),
        Column(
            "memory_bytes",
            "memory",
            lambda change: size(change.step.memory.needs_bytes, tone=TONES[change.step.memory.verdict]),
            size,
        ),
    )


def _bytes_of(fit: DryFit) -> dict[str, float]:
    return {**fit.by_kind, "base": fit.base_bytes, "slack": fit.slack_bytes, "total": fit.needs_bytes}


def dry_memory_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a kind, one column a world; of the rank that needs most, at its peak."""
    job = dry[0]
    fits = {world: step.memory for world, step in job.steps.items()}
    amounts = {world: _bytes_of(fit) for world, fit in fits.items()}
    kinds = [kind for kind in KIND if any(of_world[kind] for of_world in amounts.values())]
    last = max(fits)

    def column(world: int) -> Column:
        def amount(kind: str) -> Value:
            return size(amounts[world][kind], tone=TONES[fits[world].verdict] if kind == "total" else "plain")

        return Column(f"on_{world}_bytes", f"{world} {_units(dry)}", amount, size)

    return tabled(
        "dry_memory",
        "Memory of one GPU at its peak",
        kinds,
        lead_column("kind", "kind", lambda kind: KIND[kind]),
        *map(column, fits),
        Column("share", "of the GPU", lambda kind: amounts[last][kind] / fits[last].device_bytes, percent),
        footnotes=(
            f"of the GPU: of {format_bytes(fits[last].device_bytes)}, on {last} GPUs; fits up to {MEMORY_LIMIT:.0%}. "
            "Counted: all but context and fragmentation, which are those of published runs",
        ),
    )


def dry_at_peak_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: the largest of what is alive at the peak of the largest world."""
    job = dry[0]
    world = max(job.worlds)
    memory = job.fullest(world).memory
    where = ", ".join(filter(None, (memory.peak_op, memory.peak_place)))
    return tabled(
        "dry_at_peak",
        f"Alive at the peak, on {world} GPUs",
        sorted(memory.at_peak, key=lambda storage: -storage.size_bytes)[:MOST],
        group_column("where", "", lambda _: where),
        lead_column("kind", "kind", lambda storage: KIND[storage.kind]),
        lead_column("module", "module", "module"),
        Column("place", "line", "place", drop=1),
        Column("shape", "shape", lambda storage: wording("x".join(map(str, storage.shape))), drop=2),
        Column("dtype", "type", "dtype", drop=3),
        Column("count", "tensors", "count", whole),
        Column("bytes", "size", "size_bytes", size),
        Column("share", "share", lambda storage: storage.size_bytes / max(1, memory.peak_bytes), percent),
    )


def dry_lanes_charts(dry: Sequence[DryJob]) -> Iterator[Chart]:
    """Yield the step of one rank over time: what it computes, what it sends, where it waits."""
    for job in dry:
        over = job.lanes
        if over is None or len(over.computing) + len(over.communicating) > MOST_SPANS:
            continue
        unit, scale = ("s", 1e-9) if over.step_ns >= 2e9 else ("ms", 1e-6)
        title = f"{job.largest.ranks} GPUs, rank {job.fullest(job.largest.ranks).rank}"
        sent = dict.fromkeys(SENT.format(span.axis or "groups") for span in over.communicating)
        names = ["computation", *sent]
        bars: list[dict[str, Any]] = []
        for span in (*over.computing, *over.communicating):
            of_call = not span.waiting and span.of not in PARTS
            series = "waiting for it" if span.waiting else span.of if of_call else PARTS[span.of]
            row = SENT.format(span.axis or "groups") if of_call else names[0]
            much = f" of {format_bytes(span.size_bytes)}" if span.size_bytes else ""
            sentence = f"{series}{much}: {format_duration(span.end_ns - span.start_ns)}"
            ends = {"from": span.start_ns * scale, "to": span.end_ns * scale}
            bars.append({"row": row, "series": series, **ends, "said": sentence})
        kinds = list(dict.fromkeys(bar["series"] for bar in sorted(bars, key=lambda bar: names.index(bar["row"]))))
        spare = cycle(SENT_COLORS)
        hues = [BAD if kind == "waiting for it" else PHASE_COLORS.get(kind) or next(spare) for kind in kinds]
        spec = chart(
            title,
            layer("bar", bars, x="from", x2="to", color=by_series(kinds, hues, width=PAGE)),
            width=PAGE,
            height=30 * len(names),
            x=number_axis("from", f"time ({unit})", low=0.0, top=over.step_ns * scale),
            y=name_axis("row", names),
        )
        waited = sum(span.end_ns - span.start_ns for span in over.computing if span.waiting)
        caption = (
            f"The predicted step of one rank: what it computes by phase, below it what it sends; in red it waits for that, "
            f"{format_duration(waited)} in all. Without the fixed time of a step and the slowest GPU."
        )
        yield Chart(str(job.largest.ranks), title, caption, spec)


def dry_memory_charts(dry: Sequence[DryJob]) -> Iterator[Chart]:
    """Yield kinds on top of each other over the step of the largest world."""
    for job in dry:
        rank = job.fullest(max(job.worlds))
        memory, peak = rank.memory, dict(zip(MEMORY_KINDS, rank.memory.peak, strict=True))
        if len(memory.at) < 2:
            continue
        over = dict(zip(MEMORY_KINDS, zip(*memory.samples, strict=True), strict=True))
        kinds = [kind for kind in MEMORY_KINDS if any(over[kind])]
        over_time = job.lanes
        at = [float(position) for position in memory.at]
        axis, peak_at = "operators of the step", float(memory.peak_at)
        if over_time is not None:
            at, axis, peak_at = [ns / 1e6 for ns in over_time.at_ns], "time (ms)", over_time.peak_ns / 1e6
        title = f"{rank.world_size} GPUs, rank {rank.rank}"
        parts = ((KIND[kind], over[kind], f"{KIND[kind]}: at most {format_bytes(max(over[kind]))}") for kind in kinds)
        hues = dict(zip(MEMORY_KINDS, COLORS, strict=True))
        hue = by_series([KIND[kind] for kind in kinds], [hues[kind] for kind in kinds], width=PAGE)
        spec = chart(
            title,
            *[
                layer("area", points, y="from", y2="to", color=hue, interpolate="step-after")
                for points in stacked_areas(at, parts, 1e-9)
            ],
            layer("rule", [{"x": peak_at}], **UPRIGHT, color=INK, strokeDash=[2, 2], strokeWidth=0.9),
            width=PAGE,
            height=150,
            x=number_axis("x", axis, low=0.0, top=at[-1]),
            y=number_axis("from", "memory of a rank (GB)", low=0.0),
        )
        amounts = [
            f"{KIND[kind]} {format_bytes(peak[kind])} ({format_percent(peak[kind] / memory.peak_bytes)})"
            for kind in sorted(kinds, key=lambda kind: -peak[kind])
        ]
        where = f" at {memory.peak_place}" if memory.peak_place else ""
        caption = (
            f"What live tensors hold over the recorded step, by kind, without context and fragmentation. Peak "
            f"{format_bytes(memory.peak_bytes)}{where} (vertical line): {listed(amounts, at_most=7)}."
        )
        yield Chart(str(rank.world_size), title, caption, spec)


VIEWS = (
    View("dry_steps", table=dry_steps_table),
    View("dry_parts", table=dry_parts_table),
    View("dry_kernels", table=dry_kernels_table),
    View("dry_traffic", table=dry_traffic_table),
    View("dry_changes", table=dry_changes_table),
    View("dry_lanes", "The step of a dry run", charts=dry_lanes_charts),
    View("dry_memory", "Memory of a dry run", table=dry_memory_table, charts=dry_memory_charts),
    View("dry_at_peak", table=dry_at_peak_table),
)
