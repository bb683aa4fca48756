"""Ranks x phases, of the timed steps: who takes how long for what; and the steps a second over the time of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_decimal, format_duration
from stepscope.diagnose.rank_rows import RankRow, rank_rows
from stepscope.records.parts import LEAVES
from stepscope.report.names import file_part
from stepscope.report.shared.parts import PARTS
from stepscope.report.table import Column, Table, duration, number, tabled, wording
from stepscope.report.vega import PAGE, Spec, chart, color, layer, number_axis, sig
from stepscope.report.views import distinct, drawn
from stepscope.results.pace import StepRate
from stepscope.results.profiled_job import ProfiledJob


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table of ``rank_rows``; no rows of a job of one rank."""
    rows = [
        (job, rank_row)
        for job in profiled
        if job.steps is not None and job.steps.ranks > 1
        for rank_row in rank_rows(job.steps)
    ]
    return tabled(
        "ranks",
        "Ranks",
        rows,
        Column("job", "job", lambda row: row[0].name, role="group"),
        Column("rank", "rank", lambda row: row[1].name, role="lead"),
        Column("ranks", "ranks", lambda row: row[1].ranks, number),
        Column("host", "host", lambda row: row[1].host, role="identity"),
        Column("step", "step", lambda row: row[1].step_ns, duration),
        *(Column(key, PARTS[key][0], _part(key), duration) for key in LEAVES),
        Column("own", "own time", lambda row: row[1].own_ns, duration),
        Column("late", "", lambda row: wording("late" if row[1].late else None, row[1].late or None, tone="bad")),
        footnotes=("means of the timed steps; own time: until a rank waits for others",),
    )


def _part(key: str) -> Callable[[tuple[ProfiledJob, RankRow]], float | None]:
    return lambda row: row[1].parts[key] or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Steps a second of a job over its time. rank: whose steps are counted."""

    key: str
    title: str
    pace: StepRate
    rank: int


def prepare(profiled: Sequence[ProfiledJob]) -> tuple[Throughput, ...]:
    """Return one chart a job with steps in several stretches of time."""
    return distinct(
        Throughput(key=file_part(job.name), title=job.name, pace=job.pace, rank=job.diaries[0].rank)
        for job in profiled
        if job.pace is not None and job.pace.steps_per_s.size > 2
    )


def pace_chart(data: Throughput) -> Spec:
    """Draw steps a second over the time since the first step: a level a stretch."""
    lasts = (data.pace.end_unix_ns - data.pace.begin_unix_ns) / 1e9
    scale, unit = next((pair for pair in ((3600.0, "h"), (60.0, "min")) if lasts >= 2 * pair[0]), (1.0, "s"))
    values = data.pace.steps_per_s
    at = np.arange(values.size + 1) * data.pace.seconds / scale
    points: list[dict[str, float | str]] = [
        {"x": sig(x), "y": sig(y)} for x, y in zip(at, [*values, values[-1]], strict=True)
    ]
    points[0] |= {"said": caption(data)}
    return chart(
        data.title,
        layer("line", points, interpolate="step-after", strokeWidth=1.0, color=color("c0")),
        width=PAGE,
        height=70,
        x=number_axis("x", f"time since the first step ({unit})", low=0.0, top=lasts / scale),
        y=number_axis("y", "throughput (steps/s)", low=0.0, top=1.05 * float(values.max())),
    )


def caption(data: Throughput) -> str:
    """Say what is seen, in sentences."""
    pace = data.pace
    return (
        f"Steps/s of rank {data.rank}, with all that is between steps, by {format_duration(pace.seconds * 1e9)}: "
        f"{format_decimal(pace.mean)} in the mean of {format_duration(pace.end_unix_ns - pace.begin_unix_ns)}, "
        f"{format_decimal(pace.now)} in the last steps."
    )


VIEWS = (drawn("throughput_over_time", "Steps per second", ("profiled",), prepare, pace_chart, caption, table=build),)
