"""Memory of a profiled job's ranks over its time, from the samples beside its diary: what each holds, and what grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bytes_binary, format_duration
from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.report.names import file_part
from stepscope.report.shared.curves import extremes
from stepscope.report.table import Column, Table, binary_size, number, tabled
from stepscope.report.vega import PAGE, Spec, by_series, chart, color, layer, number_axis, sig
from stepscope.report.views import distinct, drawn
from stepscope.results.diary import JobSteps
from stepscope.results.memory_growth import Of, RankMemory, rank_memory
from stepscope.results.profiled_job import ProfiledJob
from stepscope.store.diary import RankDiary

MOST_LINES, MOST_ROWS = 4, 16
"""Ranks in a chart and in the table: those that grow fastest, then those that hold most."""

Points = tuple[tuple[float, float], ...]
POINTS = 600
"""Points of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOverTime:
    """One chart. lines: of a rank (seconds since the first sample of all, bytes) each; ``ranks`` have samples."""

    key: str
    title: str
    of: Of
    ranks: int
    lines: tuple[tuple[RankMemory, Points], ...]


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a rank and kind of memory, where memory was sampled."""
    timed = [(job, job.steps) for job in profiled if job.steps is not None]
    rows = [
        (job, memory) for job, steps in timed for of in ("host", "device") for memory in _first(steps, of)[:MOST_ROWS]
    ]
    ranks = max((len({memory.rank for memory in rank_memory(steps)}) for _, steps in timed), default=0)
    more = f"{MOST_ROWS} of {ranks:,} ranks: those that grow fastest, then those that hold most"
    return tabled(
        "memory_over_time",
        "Memory of the ranks",
        rows,
        Column("job", "job", lambda row: row[0].name, role="group"),
        Column("rank", "rank", lambda row: row[1].rank, number, role="lead"),
        Column("host", "host", lambda row: row[1].host, role="identity"),
        Column("of", "memory", lambda row: row[1].of),
        Column("held", "held", lambda row: _finite(row[1].bytes), binary_size),
        Column("growth", "growth a step", lambda row: _grows(row[1].growth), binary_size),
        Column("left", "left", lambda row: _finite(row[1].left), binary_size),
        Column("samples", "samples", lambda row: row[1].samples, number),
        footnotes=(more,) if ranks > MOST_ROWS else (),
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _grows(growth: Measured | None) -> float | None:
    return None if growth is None else growth.value


def _first(steps: JobSteps, of: Of) -> list[RankMemory]:
    of_kind = [memory for memory in rank_memory(steps) if memory.of == of]
    return sorted(
        of_kind, key=lambda memory: (-(_grows(memory.growth) or 0.0), -(_finite(memory.bytes) or 0.0), memory.rank)
    )


def prepare(profiled: Sequence[ProfiledJob]) -> tuple[HeldOverTime, ...]:
    """Return one chart a job and kind of memory of which a rank has two samples."""
    return distinct(
        HeldOverTime(
            key=f"{file_part(job.name)}-{of}",
            title=f"{job.name}: {of} memory",
            of=of,
            ranks=sum(memory.of == of for memory in rank_memory(job.steps)),
            lines=lines,
        )
        for job in profiled
        if job.steps is not None
        for of in ("host", "device")
        if (lines := _lines(job.steps, of))
    )


def _lines(steps: JobSteps, of: Of) -> tuple[tuple[RankMemory, Points], ...]:
    diaries = {diary.rank: diary for diary in steps.diaries}
    chosen = [memory for memory in _first(steps, of)[:MOST_LINES] if memory.samples > 1]
    begun = min((float(diaries[memory.rank].samples["unix_s"].min()) for memory in chosen), default=0.0)
    return tuple(
        (memory, _line(diaries[memory.rank], of, begun)) for memory in sorted(chosen, key=lambda memory: memory.rank)
    )


def _line(diary: RankDiary, of: Of, begun: float) -> Points:
    sizes = diary.samples["resident" if of == "host" else "reserved"]
    finite = np.isfinite(sizes)
    at, sizes = diary.samples["unix_s"][finite] - begun, sizes[finite]
    kept = extremes(sizes, POINTS // 3)
    return tuple(zip(at[kept].tolist(), sizes[kept].tolist(), strict=True))


def memory_chart(data: HeldOverTime) -> Spec:
    """Draw a line a rank, over the time since the first sample."""
    lasts = max(points[-1][0] for _, points in data.lines)
    most = max(amount for _, points in data.lines for _, amount in points)
    span, time = next((pair for pair in ((3600.0, "h"), (60.0, "min")) if lasts >= 2 * pair[0]), (1.0, "s"))
    size, unit = (2.0**30, "GiB") if most >= 2**30 else (2.0**20, "MiB")
    names = [f"rank {memory.rank}" for memory, _ in data.lines]
    hue = by_series(names, [color(f"c{at}") for at in range(len(names))], width=PAGE)
    layers = []
    for name, (_, points) in zip(names, data.lines, strict=True):
        values: list[dict[str, float | str]] = [
            {"x": sig(at / span), "y": sig(amount / size), "series": name} for at, amount in points
        ]
        values[0] |= {"said": f"{name}: {format_bytes_binary(points[-1][1])} at the end"}
        layers.append(layer("line", values, {"color": hue}, strokeWidth=1.2, strokeJoin="round"))
    return chart(
        data.title,
        *layers,
        width=PAGE,
        height=90,
        x=number_axis("x", f"time since the first sample ({time})", low=0.0, top=lasts / span),
        y=number_axis("y", f"memory ({unit})", low=0.0, top=1.05 * most / size),
    )


def caption(data: HeldOverTime) -> str:
    """Say what is seen, in sentences."""
    seen, points = max(data.lines, key=lambda line: line[1][-1][1])
    lasts, amount = points[-1]
    what = "Resident memory" if data.of == "host" else "Memory that torch's allocator has reserved"
    of = counted(data.ranks, "rank") if data.ranks == len(data.lines) else f"{len(data.lines)} of {data.ranks:,} ranks"
    grow = ", ".join(
        f"rank {memory.rank} by {format_bytes_binary(memory.growth.value)} a step"
        for memory, _ in data.lines
        if memory.growth is not None
    )
    return (
        f"{what} of {of}, over {format_duration(lasts * 1e9)}; at the end rank {seen.rank} holds most:"
        f" {format_bytes_binary(amount)}." + (f" Growth: {grow}." if grow else "")
    )


VIEWS = (drawn("memory_over_time", "Memory over time", ("profiled",), prepare, memory_chart, caption, table=build),)
