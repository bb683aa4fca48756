"""Memory of a profiled job's ranks over its time, from the samples beside its diary: what each holds, and what grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stepscope.core.units import format_bytes_binary, format_duration
from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.report.names import file_part
from stepscope.report.shared.curves import extremes
from stepscope.report.shared.runs import memory_unit, span_unit
from stepscope.report.table import (
    Column,
    Table,
    binary_size,
    group_column,
    identity_column,
    lead_column,
    number,
    tabled,
)
from stepscope.report.vega import COLORS, PAGE, Chart, Spec, by_series, chart, layer, number_axis, telling
from stepscope.report.views import View
from stepscope.results.diary import JobSteps
from stepscope.results.memory_growth import Of, RankMemory, rank_memory
from stepscope.results.profiled_job import ProfiledJob
from stepscope.store.diary import RankDiary

MOST_LINES, MOST_ROWS = 4, 16
"""Ranks in a chart and in the table: those that grow fastest, then those that hold most."""

Points = tuple[tuple[float, float], ...]
POINTS = 600
"""Points of a line."""


Lines = list[tuple[RankMemory, Points]]
"""Of each rank what it holds: seconds since the first sample of all, bytes."""

KINDS: tuple[Of, ...] = ("host", "device")


def _jobs_with_steps(profiled: Sequence[ProfiledJob]) -> list[tuple[ProfiledJob, JobSteps]]:
    return [(job, job.steps) for job in profiled if job.steps is not None]


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a rank and kind of memory, where memory was sampled."""
    jobs = _jobs_with_steps(profiled)
    rows = [(job, memory) for job, steps in jobs for of in KINDS for memory in _ranks_by_growth(steps, of)[:MOST_ROWS]]
    ranks = max((len({memory.rank for memory in rank_memory(steps)}) for _, steps in jobs), default=0)
    more = f"{MOST_ROWS} of {ranks:,} ranks: those that grow fastest, then those that hold most"
    return tabled(
        "memory_over_time",
        "Memory of the ranks",
        rows,
        group_column("job", "job", "0.name"),
        lead_column("rank", "rank", "1.rank", number),
        identity_column("host", "host", "1.host"),
        Column("of", "memory", "1.of"),
        Column("held", "held", lambda row: _finite_or_none(row[1].bytes), binary_size),
        Column("growth", "growth a step", lambda row: _growth_value(row[1].growth), binary_size),
        Column("left", "left", lambda row: _finite_or_none(row[1].left), binary_size),
        Column("samples", "samples", "1.samples", number),
        footnotes=(more,) if ranks > MOST_ROWS else (),
    )


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _growth_value(growth: Measured | None) -> float | None:
    return None if growth is None else growth.value


def _ranks_by_growth(steps: JobSteps, of: Of) -> list[RankMemory]:
    of_kind = [memory for memory in rank_memory(steps) if memory.of == of]
    return sorted(
        of_kind,
        key=lambda memory: (
            -(_growth_value(memory.growth) or 0.0),
            -(_finite_or_none(memory.bytes) or 0.0),
            memory.rank,
        ),
    )


def memory_charts(profiled: Sequence[ProfiledJob]) -> Iterator[Chart]:
    """Yield one chart a job and kind of memory of which a rank has two samples: a line a rank."""
    for job, steps in _jobs_with_steps(profiled):
        for of in KINDS:
            lines = _memory_lines(steps, of)
            if lines:
                title = f"{job.name}: {of} memory"
                ranks = sum(memory.of == of for memory in rank_memory(steps))
                yield Chart(
                    f"{file_part(job.name)}-{of}", title, _memory_caption(of, ranks, lines), _memory_chart(title, lines)
                )


def _memory_lines(steps: JobSteps, of: Of) -> Lines:
    diaries = {diary.rank: diary for diary in steps.diaries}
    chosen = [memory for memory in _ranks_by_growth(steps, of)[:MOST_LINES] if memory.samples > 1]
    begun = min((float(diaries[memory.rank].samples["unix_s"].min()) for memory in chosen), default=0.0)
    chosen.sort(key=lambda memory: memory.rank)
    return [(memory, _memory_points(diaries[memory.rank], of, begun)) for memory in chosen]


def _memory_points(diary: RankDiary, of: Of, begun: float) -> Points:
    sizes = diary.samples["resident" if of == "host" else "reserved"]
    finite = np.isfinite(sizes)
    at, sizes = diary.samples["unix_s"][finite] - begun, sizes[finite]
    kept = extremes(sizes, POINTS // 3)
    return tuple(zip(at[kept].tolist(), sizes[kept].tolist(), strict=True))


def _memory_chart(title: str, lines: Lines) -> Spec:
    """Draw memory over time, a line for each rank."""
    lasts = max(points[-1][0] for _, points in lines)
    most = max(amount for _, points in lines for _, amount in points)
    (span, time), (size, unit) = span_unit(lasts), memory_unit(most)
    names = [f"rank {memory.rank}" for memory, _ in lines]
    hue = by_series(names, COLORS, width=PAGE)
    layers = []
    for name, (_, points) in zip(names, lines, strict=True):
        values = [{"x": at / span, "y": amount / size, "series": name} for at, amount in points]
        telling(values, f"{name}: {format_bytes_binary(points[-1][1])} at the end")
        layers.append(layer("line", values, color=hue, strokeWidth=1.2, strokeJoin="round"))
    return chart(
        title,
        *layers,
        width=PAGE,
        height=90,
        x=number_axis("x", f"time since the first sample ({time})", low=0.0, top=lasts / span),
        y=number_axis("y", f"memory ({unit})", low=0.0, top=1.05 * most / size),
    )


def _memory_caption(of: Of, ranks: int, lines: Lines) -> str:
    """Say whose memory it is, and how it grows."""
    seen, points = max(lines, key=lambda line: line[1][-1][1])
    lasts, amount = points[-1]
    what = "Resident memory" if of == "host" else "Memory that torch's allocator has reserved"
    drawn = counted(ranks, "rank") if ranks == len(lines) else f"{len(lines)} of {ranks:,} ranks"
    grow = ", ".join(
        f"rank {memory.rank} by {format_bytes_binary(memory.growth.value)} a step"
        for memory, _ in lines
        if memory.growth is not None
    )
    return (
        f"{what} of {drawn}, over {format_duration(lasts * 1e9)}; at the end rank {seen.rank} holds most:"
        f" {format_bytes_binary(amount)}." + (f" Growth: {grow}." if grow else "")
    )


VIEWS = (View("memory_over_time", "Memory over time", table=build, charts=memory_charts),)
