"""Where the time of the steps goes, of all that were timed: a table that adds up, and how it changes over the job.

Communication after the backward pass beside communication inside it: a step of each as a picture, and what it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.narrator import MOST_RANKS, tree_rows
from stepscope.diagnose.step_tree import ROUNDING, tree_of
from stepscope.records.finding import VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_summary import RankPass
from stepscope.report import vega
from stepscope.report.names import clean, file_part
from stepscope.report.shared.curves import Numbers, bucketed, drawn_steps
from stepscope.report.shared.parts import PARTS
from stepscope.report.shared.runs import exposed_value, measured, time_unit
from stepscope.report.shared.stacks import AREA, stacked_areas
from stepscope.report.table import Column, Table, Value, duration, percent, tabled, times, whole, wording
from stepscope.report.vega import Spec
from stepscope.report.views import distinct, drawn
from stepscope.results.diary import JobSteps, parts_of
from stepscope.results.evidence import CellEvidence, TraceEvidence
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.sweeps import Hidden, OverlapGain, gains, hidden_of, overlap_conclusions, step_said, traces_of
from stepscope.stats.spans import clip
from stepscope.traces.timeline_spans import fewer
from stepscope.traces.waits import unpack

GAP = 3.0
"""Usual distances between two moments, from which on nothing is drawn between them."""

MOMENTS = 200
"""Runs of steps whose means are drawn."""

INDENT = "\u00a0\u00a0"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Parts of the steps over a job. at: number of the step in the middle of each moment. parts: name and mean ns at each
    moment, of all ranks. stretches: (first, end) of the moments without a gap between them, such as the profiled steps."""

    key: str
    title: str
    first: int
    steps: int
    timed: int
    ranks: int
    at: tuple[float, ...]
    stretches: tuple[tuple[int, int], ...]
    parts: tuple[tuple[str, tuple[float, ...]], ...]


def prepare(profiled: Sequence[ProfiledJob]) -> tuple[StepParts, ...]:
    """Return one chart a job with three timed steps."""
    return distinct(_parts(job, job.steps) for job in profiled if job.steps is not None and job.steps.steps > 2)


def _parts(job: ProfiledJob, steps: JobSteps) -> StepParts:
    means = {key: bucketed(values.mean(axis=0), MOMENTS) for key, values in parts_of(steps).items()}
    at = bucketed(steps.numbers.astype(float), MOMENTS)
    whole = sum(float(values.sum()) for values in means.values())
    return StepParts(
        key=file_part(job.name),
        title=job.name,
        first=steps.first,
        steps=drawn_steps(steps),
        timed=steps.steps,
        ranks=steps.ranks,
        at=tuple(at.tolist()),
        stretches=_stretches(at),
        parts=tuple((key, tuple(values.tolist())) for key, values in means.items() if values.sum() > ROUNDING * whole),
    )


def _stretches(at: Numbers) -> tuple[tuple[int, int], ...]:
    """Return where moments follow each other: a gap is longer than three usual distances."""
    apart = np.diff(at)
    gaps = np.flatnonzero(apart > GAP * np.median(apart)) + 1
    return tuple(pairwise([0, *gaps.tolist(), at.size]))


def area_chart(data: StepParts) -> Spec:
    """Draw parts on top of each other, in the order of a step."""
    sums = [sum(moment) for moment in zip(*(values for _, values in data.parts), strict=True)]
    scale, unit = time_unit(max(sums))
    total = sum(sums)

    def part_text(name: str, values: Sequence[float]) -> str:
        whole = sum(values)
        return f"{name}: {format_duration(whole / len(values))}, {format_percent(whole / total)} of the step"

    named = [(PARTS[key][0], values) for key, values in data.parts]
    areas = stacked_areas(data.at, ((name, values, part_text(name, values)) for name, values in named), scale)
    for points in areas:
        for number, (first, end) in enumerate(data.stretches):
            points[first]["said"] = points[0]["said"]
            for point in points[first:end]:
                point["stretch"] = number
    hue = vega.by_series(
        [PARTS[key][0] for key, _ in data.parts], [PARTS[key][1] for key, _ in data.parts], width=vega.PAGE
    )
    span = {**AREA, "color": hue, "detail": {"field": "stretch"}}
    return vega.chart(
        data.title,
        *[vega.layer("area", points, span) for points in areas],
        width=vega.PAGE,
        height=110,
        x=vega.whole_axis("x", "step", [data.first + 1, data.steps]),
        y=vega.number_axis("from", f"step time ({unit})", low=0.0, top=1.02 * max(sums) * scale),
    )


def caption(data: StepParts) -> str:
    """Say what is seen, in sentences."""
    total = sum(sum(values) for _, values in data.parts)
    shares = [f"{PARTS[key][0]} {format_percent(sum(values) / total)}" for key, values in data.parts]
    ranks = "" if data.ranks == 1 else f", mean of {counted(data.ranks, 'rank')}"
    return (
        f"Parts of the {data.timed:,} timed steps{ranks}: {listed(shares, at_most=8)}. Warm-up, profiled steps and steps "
        "with something between them are left out."
    )


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a part, each below what it is a part of; the rows of one level add up to the step."""
    rows = [(job, depth, part) for job in profiled if job.steps is not None for depth, part in _rows(job.steps)]
    ranks = sorted({rank for _, _, part in rows for rank, _ in part.by_rank})
    return tabled(
        "step_parts",
        "Parts of a timed step",
        rows,
        Column("job", "job", lambda row: row[0].name, role="group"),
        Column("part", "part", lambda row: wording(INDENT * row[1] + row[2].key, row[2].key), role="lead"),
        Column("mean", "mean", lambda row: row[2].ns, duration),
        Column("share", "share", lambda row: row[2].share, percent),
        *_of_ranks(ranks),
        footnotes=(f"mean of all ranks and timed steps; waiting: {EXPOSED_COMM} beyond that of the last rank",)
        if ranks[1:]
        else ("mean of the timed steps",),
    )


def _rows(steps: JobSteps) -> list[tuple[int, VerdictPart]]:
    tree = tree_of(steps, parts_of(steps), marked=None, every_rank=True)
    ns = sum(part.ns for part in tree)
    by_rank = tuple(
        (d.rank, float(mean_ns)) for d, mean_ns in zip(steps.diaries, steps.whole_ns.mean(axis=1), strict=True)
    )
    return [
        *tree_rows(tree),
        (0, VerdictPart(key="a step", ns=ns, share=sum(part.share for part in tree), by_rank=by_rank)),
    ]


def _of_ranks(ranks: Sequence[int]) -> tuple[Column, ...]:
    """Return a column a rank; of many those of the lowest and the highest."""

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


MAX_RANKS = 4
"""Ranks of one picture: one shows the overlap, a few show that it is the same on all."""

MAX_BARS = 160
"""Bars of one rank."""

COMPUTE, HIDDEN, EXPOSED = "computation", "hidden communication", EXPOSED_COMM
_COLORS = (vega.color("k-compute"), vega.color("k-hidden"), vega.color("k-exposed"))
_OF_KIND = {"compute": COMPUTE, "hidden_comm": HIDDEN, "exposed_comm": EXPOSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    cell: CellEvidence
    hidden: Hidden
    gain: OverlapGain | None


def gain_table(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> Table:
    """Return the table: a row a cell that reduces after the backward pass, and a row for each of the same work that reduces
    inside it."""
    every_gain = gains(cells, traces)
    rows: list[_Row] = []
    for gain in every_gain:
        if not any(row.cell is gain.after for row in rows):
            rows.append(_Row(cell=gain.after, hidden=gain.hidden_after, gain=None))
        rows.append(_Row(cell=gain.inside, hidden=gain.hidden_inside, gain=gain))
    return tabled(
        "overlap_gain",
        "Communication after backward and inside backward",
        rows,
        Column("group", "runs", lambda row: row.cell.run.group, role="group"),
        Column("strategy", "strategy", lambda row: row.cell.run.strategy, role="lead"),
        Column("world_size", "ranks", lambda row: row.cell.run.world_size, whole, role="identity"),
        Column("reduces", "reduces", lambda row: _reduces(row), role="identity"),
        Column("comm_ns", "comm/step", lambda row: row.hidden.comm_ns, duration),
        Column("hidden", "hidden", lambda row: _hidden(row.hidden)),
        Column("exposed_comm_ns", "exposed", lambda row: exposed_value(row.cell.run), duration),
        Column("step_ns", "step", lambda row: measured(row.cell.run.step_ns, duration, tight=True), duration),
        Column("step_ratio", "step against", lambda row: _ratio(row.gain), short="against"),
        footnotes=(
            *overlap_conclusions(every_gain),
            "comm/step, hidden: from the profiled steps of all ranks, in parentheses the single steps; exposed, step: from"
            " the timed steps; step against: of the run that reduces after backward, with its 95% interval.",
        ),
    )


def _reduces(row: _Row) -> str:
    return "after backward" if row.gain is None else "inside backward"


def _hidden(hidden: Hidden) -> Value:
    share = hidden.share
    text = format_percent(share.value)
    if share.low is not None and share.high is not None and share.high > 0:
        text += f" ({format_percent(share.low)} to {format_percent(share.high)})"
    return Value(text=text, raw=share.value)


def _ratio(gain: OverlapGain | None) -> Value:
    if gain is None:
        return Value(text="", raw=None)
    step = gain.step
    shown = times(step.ratio)
    if step.low is None or step.high is None:
        return shown
    tone = {"better": "good", "worse": "bad"}.get(step.verdict, "plain")
    return Value(text=f"{shown.text} ({step.low:.2f} to {step.high:.2f})", raw=step.ratio, tone=tone)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """One profiled step of one cell, the one of median length. bars: (row, kind, from, to) in ns of the rank's step.

    end_ns: of the axis, the same for all pictures of a group. text: what to see.
    """

    key: str
    title: str
    rows: tuple[str, ...]
    bars: tuple[tuple[str, str, int, int], ...]
    end_ns: int
    text: str


def step_pictures(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> tuple[StepPicture, ...]:
    """Return each cell that reduces after the backward pass, then those of the same work that reduce inside; same axis."""
    jobs = traces_of(cells, [trace for trace in traces if any(p.spans for p in trace.summary.ranks)])
    groups: dict[str, tuple[OverlapGain, ...]] = {}
    for gain in gains(cells, traces):
        if {gain.after.run.run_id, gain.inside.run.run_id} <= jobs.keys():
            groups[gain.after.run.run_id] = (*groups.get(gain.after.run.run_id, ()), gain)
    return distinct(picture_chart for group in groups.values() for picture_chart in _pictures(group, jobs))


def _pictures(group: Sequence[OverlapGain], jobs: dict[str, TraceEvidence]) -> Iterator[StepPicture]:
    first = group[0].after
    every: list[tuple[CellEvidence, str]] = [(first, "")]
    every += [(gain.inside, f" {step_said(gain)}.") for gain in group]
    steps = [
        (cell, sentence, step) for cell, sentence in every if (step := _typical(jobs[cell.run.run_id])) is not None
    ]
    if len(steps) < 2:
        return
    end = max(length for _, _, (_, length, _) in steps)
    for cell, gain_said, (number, length, ranks) in steps:
        job = jobs[cell.run.run_id]
        hidden = hidden_of(job)
        share = (
            ""
            if hidden is None
            else f"; over all steps {format_percent(hidden.share.value)} of communication is hidden"
        )
        where = "after backward" if cell is first else "inside backward"
        rest = len(job.summary.ranks) - len(ranks)
        yield StepPicture(
            key=file_part(cell.cell_id),
            title=clean(f"{cell.run.strategy}, {where}"),
            rows=tuple(row for rank in ranks for row in _names(rank)),
            bars=tuple(bar for rank in ranks for bar in _bars(rank, number)),
            end_ns=end,
            text=f"Step {number} of the trace of {cell.run.label}, {format_duration(length)}: each rank's computation, and"
            f" its communication below{share}.{gain_said}"
            + (f" {counted(rest, 'more rank')} not drawn." if rest else ""),
        )


def _typical(trace: TraceEvidence) -> tuple[int, int, list[RankPass]] | None:
    """Return (number, length on its slowest rank, ranks to draw) of the step of median length; None without marks."""
    drawn = [rank for rank in trace.summary.ranks if rank.spans is not None][:MAX_RANKS]
    lengths = {
        step: max(s.parts.window_ns for rank in drawn for s in rank.steps if s.step == step)
        for step in trace.summary.common_steps or ()
    }
    if not lengths:
        return None
    step = sorted(lengths, key=lambda number: lengths[number])[(len(lengths) - 1) // 2]
    return step, lengths[step], drawn


def _names(rank_pass: RankPass) -> tuple[str, str]:
    return f"rank {rank_pass.facts.rank} computes", f"rank {rank_pass.facts.rank} communicates"


def _bars(rank_pass: RankPass, number: int) -> Iterator[tuple[str, str, int, int]]:
    spans = rank_pass.spans
    assert spans is not None
    step = next(s for s in rank_pass.steps if s.step == number)
    low, high = step.start_ns, step.start_ns + step.parts.window_ns
    kinds = {
        kind.kind: clip(unpack(kind.packed, origin=spans.start_ns, unit=spans.unit_ns), low=low, high=high)
        for kind in spans.kinds
        if kind.kind in _OF_KIND
    }
    computes, communicates = _names(rank_pass)
    for kind, kept in fewer(kinds, limit=MAX_BARS)[0].items():
        row = computes if kind == "compute" else communicates
        for start, end in zip(kept.starts.tolist(), kept.ends.tolist(), strict=True):
            yield row, _OF_KIND[kind], start - low, end - low


def picture_chart(data: StepPicture) -> Spec:
    """Draw two lanes a rank over the time since its step began."""
    scale, unit = time_unit(data.end_ns)
    bars = [
        {
            "row": row,
            "series": kind,
            "from": vega.sig(start * scale),
            "to": vega.sig(end * scale),
            "said": f"{row}: {kind}, {format_duration(start)} to {format_duration(end)}",
        }
        for row, kind, start, end in data.bars
    ]
    span = {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}}
    beside = vega.WIDE * max(map(len, data.rows))
    hue = vega.by_series((COMPUTE, HIDDEN, EXPOSED), _COLORS, width=int(vega.COLUMN - beside))
    return vega.chart(
        data.title,
        vega.layer("bar", bars, {**span, "color": hue}),
        width=vega.COLUMN,
        height=20 * len(data.rows),
        x=vega.number_axis("from", f"time in the step ({unit})", low=0.0, top=data.end_ns * scale),
        y=vega.name_axis("row", data.rows),
    )


def picture_caption(data: StepPicture) -> str:
    return data.text


VIEWS = (
    drawn("step_parts", "Parts of a step", ("profiled",), prepare, area_chart, caption, table=build),
    drawn(
        "overlap_gain",
        "Communication after or inside backward",
        ("cells", "traces"),
        step_pictures,
        picture_chart,
        picture_caption,
        table=gain_table,
    ),
)
