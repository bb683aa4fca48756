"""Ranks x phases, of the timed steps: who takes how long for what; and the steps a second over the time of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stepscope.core.units import format_decimal, format_duration
from stepscope.diagnose.rank_rows import RankRow, rank_rows
from stepscope.records.parts import LEAVES
from stepscope.report.names import file_part
from stepscope.report.shared.parts import PARTS
from stepscope.report.shared.runs import span_unit
from stepscope.report.table import (
    Column,
    Table,
    duration,
    group_column,
    identity_column,
    lead_column,
    number,
    tabled,
    wording,
)
from stepscope.report.vega import PAGE, Chart, chart, color, layer, number_axis, telling
from stepscope.report.views import View
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
        group_column("job", "job", "0.name"),
        lead_column("rank", "rank", "1.name"),
        Column("ranks", "ranks", "1.ranks", number),
        identity_column("host", "host", "1.host"),
        Column("step", "step", "1.step_ns", duration),
        *(Column(key, PARTS[key][0], _part_getter(key), duration) for key in LEAVES),
        Column("own", "own time", "1.own_ns", duration),
        Column("late", "", lambda row: wording("late" if row[1].late else None, row[1].late or None, tone="bad")),
        footnotes=("means of the timed steps; own time: until a rank waits for others",),
    )


def _part_getter(key: str) -> Callable[[tuple[ProfiledJob, RankRow]], float | None]:
    return lambda row: row[1].parts[key]


def pace_charts(profiled: Sequence[ProfiledJob]) -> Iterator[Chart]:
    """Yield steps a second over the time since the first step, a level a stretch, of jobs with several stretches."""
    for job in profiled:
        if (pace := job.pace) is None or pace.steps_per_s.size <= 2:
            continue
        lasts_ns = pace.end_unix_ns - pace.begin_unix_ns
        span, unit = span_unit(lasts_ns / 1e9)
        caption = (
            f"Steps/s of rank {job.diaries[0].rank}, with all that is between steps, by"
            f" {format_duration(pace.seconds * 1e9)}: {format_decimal(pace.mean)} in the mean of"
            f" {format_duration(lasts_ns)}, {format_decimal(pace.now)} in the last steps."
        )
        levels = [*pace.steps_per_s, pace.steps_per_s[-1]]
        points = [{"x": at * pace.seconds / span, "y": level} for at, level in enumerate(levels)]
        spec = chart(
            job.name,
            layer("line", telling(points, caption), interpolate="step-after", strokeWidth=1.0, color=color("c0")),
            width=PAGE,
            height=70,
            x=number_axis("x", f"time since the first step ({unit})", low=0.0, top=lasts_ns / 1e9 / span),
            y=number_axis("y", "throughput (steps/s)", low=0.0, top=1.05 * float(pace.steps_per_s.max())),
        )
        yield Chart(file_part(job.name), job.name, caption, spec)


VIEWS = (View("throughput_over_time", "Steps per second", table=build, charts=pace_charts),)
