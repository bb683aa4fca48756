"""Memory of a dry run: bytes by kind on each world, over the step, and what is alive where they are most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.units import format_bytes, format_percent
from stepscope.core.words import listed
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.records.dry_run import MEMORY_KINDS
from stepscope.records.prediction import DryFit
from stepscope.report.shared.stacks import stacked_areas
from stepscope.report.table import (
    Column,
    Table,
    Tone,
    Value,
    group_column,
    lead_column,
    percent,
    size,
    tabled,
    whole,
    wording,
)
from stepscope.report.vega import COLORS, INK, PAGE, UPRIGHT, Chart, by_series, chart, layer, number_axis
from stepscope.report.views import View
from stepscope.results.dry_job import DryJob

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


def _bytes_of(fit: DryFit) -> dict[str, float]:
    return {**fit.held, "base": fit.base_bytes, "slack": fit.slack_bytes, "total": fit.needs_bytes}


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

        return Column(f"on_{world}_bytes", f"{world} GPUs", amount, size)

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


def dry_memory_charts(dry: Sequence[DryJob]) -> Iterator[Chart]:
    """Yield kinds on top of each other over the step of the largest world."""
    for job in dry:
        rank = job.fullest(max(job.worlds))
        memory, peak = rank.memory, dict(zip(MEMORY_KINDS, rank.memory.peak, strict=True))
        if len(memory.at) < 2:
            continue
        over = dict(zip(MEMORY_KINDS, zip(*memory.samples, strict=True), strict=True))
        kinds = [kind for kind in MEMORY_KINDS if any(over[kind])]
        at = [float(position) for position in memory.at]
        title = f"{rank.world_size} GPUs, rank {rank.rank}"
        parts = ((KIND[kind], over[kind], f"{KIND[kind]}: at most {format_bytes(max(over[kind]))}") for kind in kinds)
        hue = by_series([KIND[kind] for kind in kinds], COLORS, width=PAGE)
        spec = chart(
            title,
            *[
                layer("area", points, y="from", y2="to", color=hue, interpolate="step-after")
                for points in stacked_areas(at, parts, 1e-9)
            ],
            layer("rule", [{"x": float(memory.peak_at)}], **UPRIGHT, color=INK, strokeDash=[2, 2], strokeWidth=0.9),
            width=PAGE,
            height=150,
            x=number_axis("x", "operators of the step", low=0.0, top=at[-1]),
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
    View("dry_memory", "Memory of a dry run", table=dry_memory_table, charts=dry_memory_charts),
    View("dry_at_peak", table=dry_at_peak_table),
)
