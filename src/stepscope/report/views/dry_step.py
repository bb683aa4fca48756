"""A dry run's step: on each number of GPUs, by parts, kernels and collectives; what would change it; its speed over GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.units import format_duration
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import TITLES
from stepscope.records.prediction import DryKernels, DryStep, DryTraffic
from stepscope.report.table import (
    Column,
    Format,
    Table,
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
)
from stepscope.report.vega import Chart
from stepscope.report.views import View
from stepscope.report.views.dry_memory import TONES
from stepscope.report.views.predicted_step import ScaleCurve, ScalePoint, predicted_scaling_chart
from stepscope.results.dry_changes import DryChange, dry_changes
from stepscope.results.dry_job import DryJob, efficiency, per_gpu, speed, unit_of

KERNEL = {
    "product": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operators",
    "fused": "compiled pointwise operators",
    "copy": "copies",
    "optimizer": "optimizer",
    "communication": EXPOSED_COMM,
    "idle": "the host, which launches operators",
    "other": "fixed time, slowest GPU",
}
"""Kind of kernel, or what limits a step, in words."""
PART = {**TITLES, "idle": "waiting for the host"}
KNEE = 0.8
_Row = tuple[DryJob, DryStep]


def _rows(dry: Sequence[DryJob]) -> list[_Row]:
    return [(job, step) for job in dry for step in job.steps.values()]


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
        lead_column("gpus", "GPUs", "1.ranks", number),
        Column("step_ns", "step", "1.step_ns", duration),
        Column("interval_ns", "80% interval", interval, unit="ns", drop=2),
        Column(f"{unit}_per_s", f"{unit}/s", lambda row: speed(row[1]), number),
        Column("per_gpu", "per GPU", lambda row: per_gpu(row[1]), number),
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
        footnotes=("efficiency: speed of a GPU against the fewest; MFU: the model's FLOP, HFU: all that are computed",),
    )


def dry_parts_table(dry: Sequence[DryJob]) -> Table:
    """Return the table: one row a part of the step, one column a number of GPUs."""
    job = dry[0]
    keys = [key for key in PART if any(step.parts.get(key, 0.0) > 0 for step in job.steps.values())]

    def column(world: int, step: DryStep) -> Column:
        def part(key: str) -> Value:
            ns = step.parts.get(key, 0.0)
            return with_share(ns, ns / step.step_ns)

        return Column(f"on_{world}_ns", f"{world} GPUs", part, unit="ns", align="right")

    return tabled(
        "dry_parts",
        "Parts of the step",
        keys,
        lead_column("part", "part of the step", lambda key: PART[key]),
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
        f"Kernels of one GPU of {step.ranks}",
        step.kernels,
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
        f"Collectives of one GPU of {step.ranks}",
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


def dry_scaling_charts(dry: Sequence[DryJob]) -> Iterator[Chart]:
    """Yield the speed over GPUs with its interval, of runs on several numbers."""
    for job in dry:
        steps = list(job.steps.values())
        if len(steps) < 2:
            continue
        points = [
            ScalePoint(
                gpus=step.ranks,
                value=speed(step),
                low=speed(step) * step.step_ns / step.high_ns,
                high=speed(step) * step.step_ns / step.low_ns,
            )
            for step in steps
        ]
        good = [step.ranks for step in steps if efficiency(step, steps[0]) >= KNEE]
        yield predicted_scaling_chart(
            ScaleCurve(title=job.name, unit=f"{unit_of(steps)}/s", points=tuple(points), knee=max(good))
        )


VIEWS = (
    View("dry_steps", table=dry_steps_table),
    View("dry_parts", table=dry_parts_table),
    View("dry_kernels", table=dry_kernels_table),
    View("dry_traffic", table=dry_traffic_table),
    View("dry_changes", table=dry_changes_table),
    View("dry_scaling", "Speed over GPUs", charts=dry_scaling_charts),
)
