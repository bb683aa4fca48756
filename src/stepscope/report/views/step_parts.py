"""Where the time of the steps goes, of all that were timed: a table that adds up, and how it changes over the job.

Communication after the backward pass beside communication inside it: a step of each as a picture, and what it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.diagnose.narrator import MOST_RANKS, tree_rows
from stepscope.records.finding import VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_summary import RankPass
from stepscope.report import vega
from stepscope.report.names import clean, file_part
from stepscope.report.shared.curves import Numbers, bucketed, drawn_steps
from stepscope.report.shared.parts import PARTS
from stepscope.report.shared.runs import exposed_value, measured, time_unit
from stepscope.report.shared.stacks import stacked_areas
from stepscope.report.table import (
    Column,
    Table,
    Value,
    duration,
    group_column,
    identity_column,
    lead_column,
    percent,
    tabled,
    times,
    whole,
    wording,
)
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View
from stepscope.results.diary import JobSteps, parts_of
from stepscope.results.evidence import CellEvidence, TraceEvidence
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.sweeps import Hidden, OverlapGain, gains, hidden_of, overlap_conclusions, step_said, traces_of
from stepscope.stats.spans import clip
from stepscope.stats.step_table import ROUNDING, tree_of
from stepscope.traces.timeline_spans import fewer
from stepscope.traces.waits import unpack

GAP = 3.0
"""Usual distances between two moments, from which on nothing is drawn between them."""

MOMENTS = 200
"""Runs of steps whose means are drawn."""

INDENT = "\u00a0\u00a0"


def parts_charts(profiled: Sequence[ProfiledJob]) -> Iterator[Chart]:
    """Yield the parts of the steps of jobs with three timed ones, on top of each other in the order of a step."""
    for job in profiled:
        if job.steps is not None and job.steps.steps > 2:
            yield _parts_chart(job.name, job.steps)


def _parts_chart(title: str, steps: JobSteps) -> Chart:
    """Draw the parts of the step over time, stacked."""
    means = {key: bucketed(values.mean(axis=0), MOMENTS) for key, values in parts_of(steps).items()}
    at = bucketed(steps.numbers.astype(float), MOMENTS)
    every = sum(float(values.sum()) for values in means.values())
    parts = [(*PARTS[key], values.tolist()) for key, values in means.items() if values.sum() > ROUNDING * every]
    moments = [sum(moment) for moment in zip(*(values for _, _, values in parts), strict=True)]
    scale, unit = time_unit(max(moments))
    total = sum(sum(values) for _, _, values in parts)
    spent = {name: format_percent(sum(values) / total) for name, _, values in parts}
    texts = (
        (name, values, f"{name}: {format_duration(sum(values) / len(values))}, {spent[name]} of the step")
        for name, _, values in parts
    )
    areas = stacked_areas(at.tolist(), texts, scale)
    for points in areas:
        for number, (first, end) in enumerate(_moment_stretches(at)):
            points[first]["said"] = points[0]["said"]
            for point in points[first:end]:
                point["stretch"] = number
    hue = vega.by_series([name for name, _, _ in parts], [color for _, color, _ in parts], width=vega.PAGE)
    spec = vega.chart(
        title,
        *[vega.layer("area", points, y="from", y2="to", color=hue, detail="stretch") for points in areas],
        width=vega.PAGE,
        height=110,
        x=vega.whole_axis("x", "step", [steps.first + 1, drawn_steps(steps)]),
        y=vega.number_axis("from", f"step time ({unit})", low=0.0, top=1.02 * max(moments) * scale),
    )
    ranks = "" if steps.ranks == 1 else f", mean of {counted(steps.ranks, 'rank')}"
    shares = listed([f"{name} {share}" for name, share in spent.items()], at_most=8)
    caption = (
        f"Parts of the {steps.steps:,} timed steps{ranks}: {shares}. Warm-up, profiled steps and steps with something"
        " between them are left out."
    )
    return Chart(file_part(title), title, caption, spec)


def _moment_stretches(at: Numbers) -> tuple[tuple[int, int], ...]:
    """Return where moments follow each other: a gap is longer than three usual distances."""
    apart = np.diff(at)
    gaps = np.flatnonzero(apart > GAP * np.median(apart)) + 1
    return tuple(pairwise([0, *gaps.tolist(), at.size]))


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a part, each below what it is a part of; the rows of one level add up to the step."""
    rows = [(job, depth, part) for job in profiled if job.steps is not None for depth, part in _tree_rows(job.steps)]
    ranks = sorted({rank for _, _, part in rows for rank, _ in part.by_rank})
    return tabled(
        "step_parts",
        "Parts of a timed step",
        rows,
        group_column("job", "job", "0.name"),
        lead_column("part", "part", lambda row: wording(INDENT * row[1] + row[2].key, row[2].key)),
        Column("mean", "mean", "2.ns", duration),
        Column("share", "share", "2.share", percent),
        *_of_ranks(ranks),
        footnotes=(f"mean of all ranks and timed steps; waiting: {EXPOSED_COMM} beyond that of the last rank",)
        if ranks[1:]
        else ("mean of the timed steps",),
    )


def _tree_rows(steps: JobSteps) -> list[tuple[int, VerdictPart]]:
    """Return (depth, part) of the tree, top down."""
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

_OF_KIND = {"compute": "computation", "hidden_comm": "hidden communication", "exposed_comm": EXPOSED_COMM}
_COLORS = dict(zip(_OF_KIND.values(), map(vega.color, ("k-compute", "k-hidden", "k-exposed")), strict=True))


def gain_table(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> Table:
    """Return the table: a row a cell that reduces after the backward pass, and a row for each of the same work that reduces
    inside it."""
    every_gain = gains(cells, traces)
    rows: list[tuple[CellEvidence, Hidden, OverlapGain | None]] = []
    for gain in every_gain:
        if not any(cell is gain.after for cell, _, _ in rows):
            rows.append((gain.after, gain.hidden_after, None))
        rows.append((gain.inside, gain.hidden_inside, gain))
    return tabled(
        "overlap_gain",
        "Communication after backward and inside backward",
        rows,
        group_column("group", "runs", "0.run.group"),
        lead_column("strategy", "strategy", "0.run.strategy"),
        identity_column("world_size", "ranks", "0.run.world_size", whole),
        identity_column("reduces", "reduces", lambda row: "after backward" if row[2] is None else "inside backward"),
        Column("comm_ns", "comm/step", "1.comm_ns", duration),
        Column("hidden", "hidden", lambda row: _hidden_value(row[1])),
        Column("exposed_comm_ns", "exposed", lambda row: exposed_value(row[0].run), duration),
        Column("step_ns", "step", lambda row: measured(row[0].run.step_ns, duration, tight=True), duration),
        Column("step_ratio", "step against", lambda row: _ratio_value(row[2]), short="against"),
        footnotes=(
            *overlap_conclusions(every_gain),
            "comm/step, hidden: from the profiled steps of all ranks, in parentheses the single steps; exposed, step: from"
            " the timed steps; step against: of the run that reduces after backward, with its 95% interval.",
        ),
    )


def _hidden_value(hidden: Hidden) -> Value:
    share = hidden.share
    text = format_percent(share.value)
    if share.low is not None and share.high is not None and share.high > 0:
        text += f" ({format_percent(share.low)} to {format_percent(share.high)})"
    return Value(text, share.value)


def _ratio_value(gain: OverlapGain | None) -> Value:
    """Write the ratio of the steps with its interval."""
    if gain is None:
        return Value("", None)
    step = gain.step
    shown = times(step.ratio)
    if step.low is None or step.high is None:
        return shown
    tone = {"better": "good", "worse": "bad"}.get(step.verdict, "plain")
    return Value(f"{shown.text} ({step.low:.2f} to {step.high:.2f})", step.ratio, tone=tone)  # type: ignore[arg-type]


def step_pictures(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> Iterator[Chart]:
    """Yield each cell that reduces after the backward pass, then those of the same work that reduce inside; same axis."""
    jobs = traces_of(cells, [trace for trace in traces if any(p.spans for p in trace.summary.ranks)])
    drawn = [gain for gain in gains(cells, traces) if {gain.after.run.run_id, gain.inside.run.run_id} <= jobs.keys()]
    for group in grouped(drawn, lambda gain: gain.after.run.run_id).values():
        yield from _overlap_charts(group, jobs)


def _overlap_charts(group: Sequence[OverlapGain], jobs: dict[str, TraceEvidence]) -> Iterator[Chart]:
    """Yield a picture of one step for each run of a group."""
    first = group[0].after
    every = [(first, ""), *((gain.inside, f" {step_said(gain)}.") for gain in group)]
    steps = [
        (cell, sentence, step) for cell, sentence in every if (step := _median_step(jobs[cell.run.run_id])) is not None
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
        rest = len(job.summary.ranks) - len(ranks)
        title = clean(f"{cell.run.strategy}, {'after' if cell is first else 'inside'} backward")
        caption = (
            f"Step {number} of the trace of {cell.run.label}, {format_duration(length)}: each rank's computation, and"
            f" its communication below{share}.{gain_said}"
            + (f" {counted(rest, 'more rank')} not drawn." if rest else "")
        )
        yield Chart(file_part(cell.cell_id), title, caption, _lanes_spec(title, ranks, number, end))


def _median_step(trace: TraceEvidence) -> tuple[int, int, list[RankPass]] | None:
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


def _lane_names(rank_pass: RankPass) -> tuple[str, str]:
    return f"rank {rank_pass.facts.rank} computes", f"rank {rank_pass.facts.rank} communicates"


def _lane_bars(rank_pass: RankPass, number: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield (lane, kind, begin, end) of a rank's step, ns since it began."""
    spans = rank_pass.spans
    assert spans is not None
    step = next(s for s in rank_pass.steps if s.step == number)
    low, high = step.start_ns, step.start_ns + step.parts.window_ns
    kinds = {
        kind.kind: clip(unpack(kind.packed, origin=spans.start_ns, unit=spans.unit_ns), low=low, high=high)
        for kind in spans.kinds
        if kind.kind in _OF_KIND
    }
    computes, communicates = _lane_names(rank_pass)
    for kind, kept in fewer(kinds, limit=MAX_BARS)[0].items():
        row = computes if kind == "compute" else communicates
        for start, end in zip(kept.starts.tolist(), kept.ends.tolist(), strict=True):
            yield row, _OF_KIND[kind], start - low, end - low


def _lanes_spec(title: str, ranks: Sequence[RankPass], number: int, end_ns: int) -> Spec:
    """Draw two lanes a rank over the time since its step began; the axis ends at ``end_ns``."""
    scale, unit = time_unit(end_ns)
    bars = [
        {
            "row": row,
            "series": kind,
            "from": start * scale,
            "to": end * scale,
            "said": f"{row}: {kind}, {format_duration(start)} to {format_duration(end)}",
        }
        for rank in ranks
        for row, kind, start, end in _lane_bars(rank, number)
    ]
    rows = [row for rank in ranks for row in _lane_names(rank)]
    hue = vega.by_series(_COLORS, tuple(_COLORS.values()), width=int(vega.COLUMN - vega.WIDE * max(map(len, rows))))
    return vega.chart(
        title,
        vega.layer("bar", bars, x="from", x2="to", color=hue),
        width=vega.COLUMN,
        height=20 * len(rows),
        x=vega.number_axis("from", f"time in the step ({unit})", low=0.0, top=end_ns * scale),
        y=vega.name_axis("row", rows),
    )


VIEWS = (
    View("step_parts", "Parts of a step", table=build, charts=parts_charts),
    View("overlap_gain", "Communication after or inside backward", table=gain_table, charts=step_pictures),
)
