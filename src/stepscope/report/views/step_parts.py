"""Where the time of the steps goes, of all that were timed: a table that adds up, and how it changes over the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.verdict import LEAVES, ROUNDING, parts_of, tree_of
from stepscope.records.finding import VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.report.names import file_part
from stepscope.report.screen_lines import MOST_RANKS, tree_rows
from stepscope.report.shared.curves import Numbers, bucketed, drawn_steps
from stepscope.report.shared.runs import time_unit
from stepscope.report.table import Column, Table, duration, percent, said, tabled
from stepscope.report.vega import PAGE, Spec, by_series, chart, color, layer, number_axis, sig, whole_axis
from stepscope.report.view import Charts, View, distinct
from stepscope.results.diary import JobSteps
from stepscope.results.profiled_job import ProfiledJob

GAP = 3.0
"""Usual distances between moments, from which on nothing is drawn between two."""

MOMENTS = 200
"""Runs of steps whose means are drawn."""

INDENT = "\u00a0\u00a0"

PARTS: dict[str, tuple[str, str]] = {
    "data": ("waiting for data", color("k-wait")),
    "before": ("before the forward pass", color("c4")),
    "forward": ("forward", color("k-forward")),
    "backward": ("backward", color("k-compute")),
    "optimizer": ("optimizer", color("k-copies")),
    "transfer": ("exposed transfer", color("k-exposed")),
    "waiting": ("waiting for other ranks", color("k-late")),
    "other": ("other", color("k-other")),
}
"""Key of a part in the tree: name and colour."""

assert tuple(PARTS) == LEAVES


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """at: number of the step in the middle of each moment. parts: name and mean ns at each moment, of all ranks. stretches:
    (first, end) of the moments without a gap between them, such as the profiled steps.
    """

    key: str
    title: str
    steps: int
    timed: int
    ranks: int
    at: tuple[float, ...]
    stretches: tuple[tuple[int, int], ...]
    parts: tuple[tuple[str, tuple[float, ...]], ...]


def prepare(profiled: Sequence[ProfiledJob]) -> tuple[StepParts, ...]:
    """One chart a job with three timed steps."""
    return distinct(_parts(job, job.steps) for job in profiled if job.steps is not None and job.steps.steps > 2)


def _parts(job: ProfiledJob, steps: JobSteps) -> StepParts:
    means = {key: bucketed(values.mean(axis=0), MOMENTS) for key, values in parts_of(steps).items()}
    at = bucketed(steps.numbers.astype(float), MOMENTS)
    whole = sum(float(values.sum()) for values in means.values())
    return StepParts(
        key=file_part(job.name),
        title=job.name,
        steps=drawn_steps(steps),
        timed=steps.steps,
        ranks=steps.ranks,
        at=tuple(at.tolist()),
        stretches=_stretches(at),
        parts=tuple((key, tuple(values.tolist())) for key, values in means.items() if values.sum() > ROUNDING * whole),
    )


def _stretches(at: Numbers) -> tuple[tuple[int, int], ...]:
    """Where moments follow each other: a gap is longer than three usual distances."""
    apart = np.diff(at)
    gaps = np.flatnonzero(apart > GAP * np.median(apart)) + 1
    return tuple(pairwise([0, *gaps.tolist(), at.size]))


def area_chart(data: StepParts) -> Spec:
    """Parts on top of each other, in the order of a step."""
    sums = [sum(each) for each in zip(*(values for _, values in data.parts), strict=True)]
    scale, unit = time_unit(max(sums))
    areas = []
    below = [0.0] * len(data.at)
    total = sum(sums)
    for key, values in data.parts:
        above = [low + value for low, value in zip(below, values, strict=True)]
        name = PARTS[key][0]
        points: list[dict[str, float | str]] = [
            {"x": sig(x), "from": sig(low * scale), "to": sig(high * scale), "series": name}
            for x, low, high in zip(data.at, below, above, strict=True)
        ]
        mean = sum(values) / len(values)
        for number, (first, end) in enumerate(data.stretches):
            points[first]["said"] = (
                f"{name}: {format_duration(mean)}, {format_percent(sum(values) / total)} of the step"
            )
            for point in points[first:end]:
                point["stretch"] = number
        areas.append(points)
        below = above
    hue = by_series([PARTS[key][0] for key, _ in data.parts], [PARTS[key][1] for key, _ in data.parts], width=PAGE)
    span = {
        "y": {"field": "from", "type": "quantitative"},
        "y2": {"field": "to"},
        "color": hue,
        "detail": {"field": "stretch"},
    }
    return chart(
        data.title,
        [layer("area", points, span) for points in areas],
        width=PAGE,
        height=110,
        x=whole_axis("x", "step", [1, data.steps]),
        y=number_axis("from", f"step time ({unit})", low=0.0, top=1.02 * max(sums) * scale),
    )


def caption(data: StepParts) -> str:
    """What is seen, in sentences."""
    total = sum(sum(values) for _, values in data.parts)
    shares = [f"{PARTS[key][0]} {format_percent(sum(values) / total)}" for key, values in data.parts]
    ranks = "" if data.ranks == 1 else f", mean of {counted(data.ranks, 'rank')}"
    return (
        f"Parts of the {data.timed:,} timed steps{ranks}: {listed(shares, at_most=8)}. Warm-up, profiled steps and steps "
        "with something between them are left out."
    )


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """One row a part, each below what it is a part of; the rows of one level add up to the step."""
    found = [(job, depth, part) for job in profiled if job.steps is not None for depth, part in _rows(job.steps)]
    ranks = sorted({rank for _, _, part in found for rank, _ in part.by_rank})
    return tabled(
        "step_parts",
        "Parts of a timed step",
        (
            Column("job", "job", lambda row: row[0].name, role="group"),
            Column(
                "part", "part", lambda row: said(INDENT * row[1] + row[2].key, row[2].key), role="identity", lead=True
            ),
            Column("mean", "mean", lambda row: row[2].ns, duration),
            Column("share", "share", lambda row: row[2].share, percent),
            *_of_ranks(ranks),
        ),
        found,
        footnotes=(
            (f"mean of all ranks and timed steps; waiting: {EXPOSED_COMM} beyond that of the last rank",)
            if ranks[1:]
            else ("mean of the timed steps",)
        ),
    )


def _rows(steps: JobSteps) -> list[tuple[int, VerdictPart]]:
    tree = tree_of(steps, cause="undecided", every_rank=True)
    ns = sum(part.ns for part in tree)
    by_rank = tuple((d.rank, float(each)) for d, each in zip(steps.diaries, steps.whole_ns.mean(axis=1), strict=True))
    return [
        *tree_rows(tree),
        (0, VerdictPart(key="a step", ns=ns, share=sum(part.share for part in tree), by_rank=by_rank)),
    ]


def _of_ranks(ranks: Sequence[int]) -> tuple[Column, ...]:
    """A column a rank; of many the lowest and the highest."""

    def one(rank: int) -> Callable[[tuple[ProfiledJob, int, VerdictPart]], float | None]:
        return lambda row: dict(row[2].by_rank).get(rank)

    if len(ranks) < 2:
        return ()
    if len(ranks) <= MOST_RANKS:
        return tuple(Column(f"rank_{rank}", f"rank {rank}", one(rank), duration) for rank in ranks)
    return (
        Column("lowest", "lowest rank", lambda row: min((ns for _, ns in row[2].by_rank), default=None), duration),
        Column("highest", "highest rank", lambda row: max((ns for _, ns in row[2].by_rank), default=None), duration),
    )


VIEWS = (
    View(
        "step_parts",
        "Parts of a step",
        needs=("profiled",),
        table=build,
        charts=Charts(("profiled",), prepare, area_chart, caption),
    ),
)
