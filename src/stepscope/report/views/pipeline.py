"""Pipelines: the schedule as it ran, what every stage's time goes into, the bubble over micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.mesh import PipelineLayout, PipelineSpan
from stepscope.records.nouns import Measured
from stepscope.report import vega
from stepscope.report.names import clean, file_part
from stepscope.report.shared.runs import time_unit
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
    with_share,
    wording,
)
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View
from stepscope.results.evidence import CellEvidence
from stepscope.results.pipeline import MeasuredPipeline, bubble_text, conclusions, pipelines

MAX_CHARTS = 4
MAX_SPANS = 1_500
"""Spans of one picture; larger schedules are told by the tables alone."""

KINDS = {"F": "forward", "B": "backward", "I": "backward, input's gradient", "W": "backward, weights' gradient"}
_STRENGTH = {"F": 0.45, "B": 1.0, "I": 0.85, "W": 0.65}
_ROW, _FILL, _PLOT, _LINES, _LABELLED = 18, 0.84, 440, 130, 9
"""Height of a rank in points and how much of it is painted; width of the plot; hatching lines over that width; points that
a rectangle is wide at least for a text in it."""


def pipeline_table(cells: Sequence[CellEvidence]) -> tuple[Table, ...]:
    """Return the tables of the pipelines and of their stages; none without a pipeline."""
    pairs = pipelines(cells)
    if not pairs:
        return ()
    return _pipelines_table(pairs), _stages_table(pairs)


def _pipelines_table(pairs: Sequence[tuple[CellEvidence, MeasuredPipeline]]) -> Table:
    """Return the table of the pipelines: schedule, step, bubble, and what an even split would bring."""
    return tabled(
        "pipelines",
        "Pipelines",
        pairs,
        lead_column("schedule", "schedule", "1.layout.schedule"),
        identity_column("ranks", "ranks", "1.layout.ranks", whole),
        identity_column("chunks", "chunks", "1.layout.chunks", whole, drop=3),
        lead_column("micro_batches", "micro-batches", "1.layout.micro_batches", whole),
        Column("step", "schedule time", "1.step_ns", duration),
        Column("bubble", "bubble", lambda row: wording(bubble_text(row[1].bubble), row[1].bubble.value), percent),
        Column("formula", "formula", "1.layout.bubble", percent),
        Column("simulated", "simulated", "1.simulated_bubble", percent),
        Column("imbalance", "slowest stage", "1.imbalance", times, drop=2),
        Column("balanced", "even split", lambda row: _even_split_value(row[1]), drop=1),
        footnotes=(
            *conclusions(pairs),
            "bubble: share of the ranks' time from the first to the last computation in which they compute nothing, median "
            "over steps with its 95% interval; formula: equal stages, free messages; simulated: the schedule with the times "
            "that its computations and messages took; slowest stage: its time over the mean",
        ),
    )


def _even_split_value(pipeline: MeasuredPipeline) -> Value:
    split, step = pipeline.balanced
    if split == pipeline.split:
        return wording("as it is", raw=list_text(split))
    return wording(f"{list_text(split)}: step {format_percent(step - 1, signed=True)}", raw=list_text(split))


def list_text(split: Sequence[int]) -> str:
    """Write the numbers as an option is written."""
    return f"[{', '.join(map(str, split))}]"


def _stages_table(pairs: Sequence[tuple[CellEvidence, MeasuredPipeline]]) -> Table:
    """Return the table of the stages: where the time of each goes."""
    rows = [(cell, pipeline, stage) for cell, pipeline in pairs for stage in pipeline.stages]

    def part(name: str, title: str) -> Column:
        return Column(
            name, title, lambda row: with_share(ns := getattr(row[2], f"{name}_ns"), ns / row[1].step_ns), duration
        )

    return tabled(
        "pipeline_stages",
        "Stages of pipelines",
        rows,
        group_column("run", "run", "0.run.label"),
        lead_column("stage", "stage", "2.stage", whole),
        identity_column("rank", "rank", "2.rank", whole),
        identity_column("blocks", "blocks", "2.blocks", whole),
        part("forward", "forward"),
        part("backward", "backward"),
        part("send", "send"),
        part("receive", "receive"),
        part("idle", "idle"),
        footnotes=(
            "shares of the schedule's time, means over steps; send: nothing to receive, but its own messages have not left; "
            "receive: what comes next exists and is not there yet; idle: it does not exist yet",
        ),
    )


def pipeline_charts(cells: Sequence[CellEvidence]) -> Iterator[Chart]:
    """Yield a few charts: of each kind of schedule the one with the middle number of micro-batches first."""
    small = [(cell, pipeline) for cell, pipeline in pipelines(cells) if len(pipeline.typical) <= MAX_SPANS]
    kinds = grouped(small, lambda pair: (pair[1].layout.schedule, pair[1].layout.ranks, pair[1].layout.chunks))
    middle = [
        sorted(kind, key=lambda pair: pair[1].layout.micro_batches)[(len(kind) - 1) // 2] for kind in kinds.values()
    ]
    taken = set(map(id, middle))
    for cell, pipeline in (middle + [pair for pair in small if id(pair) not in taken])[:MAX_CHARTS]:
        title, layout = clean(f"{cell.run.model or cell.run.group}, {cell.run.label}", 80), pipeline.layout
        caption = (
            f"What every rank of a pipeline computes when, in the step of median length, {title}. A colour is a "
            f"micro-batch; pale: forward (F), full: backward (B; I of the input, W of the weights); hatched: "
            f"nothing. {layout.schedule}, {counted(layout.ranks, 'rank')}, micro-batches: {layout.micro_batches}; "
            f"bubble {format_percent(pipeline.bubble.value)}, by the formula {format_percent(layout.bubble)}."
        )
        yield Chart(file_part(cell.run.run_id), title, caption, _schedule_spec(title, layout.ranks, pipeline.typical))


def _span_bar(span: PipelineSpan, scale: float) -> Spec:
    """Return the painted rectangle of one computation. scale: ns -> the axis."""
    took = format_duration(span.end_ns - span.start_ns)
    return {
        "from": span.start_ns * scale,
        "to": span.end_ns * scale,
        **_row_edges(span.rank),
        "hue": vega.COLORS[span.micro_batch % len(vega.COLORS)],
        "strength": _STRENGTH[span.kind],
        "said": f"rank {span.rank}, stage {span.stage}, micro-batch {span.micro_batch}: {KINDS[span.kind]}, {took}",
    }


def _span_label(span: PipelineSpan, scale: float) -> Spec:
    """Return the text in a rectangle (``F3``), in its middle. scale: ns -> the axis."""
    return {
        "from": (span.start_ns + span.end_ns) / 2 * scale,
        "top": span.rank + 0.5,
        "text": f"{span.kind}{span.micro_batch}",
        "ink": vega.INK if span.kind == "F" else vega.color("ground"),
    }


def _schedule_spec(title: str, ranks: int, spans: Sequence[PipelineSpan]) -> Spec:
    """Draw a row for each rank; a colour for each micro-batch, pale forward, full backward; hatched without computation."""
    end = max(span.end_ns for span in spans)
    scale, unit = time_unit(end)
    bars = [_span_bar(span, scale) for span in spans]
    texts = [_span_label(span, scale) for span in spans if (span.end_ns - span.start_ns) / end * _PLOT > _LABELLED]
    hatching = [
        {**line, "from": line["from"] * scale, "to": line["to"] * scale}
        for rank, start, stop in _idle_gaps(spans, end)
        for line in _hatching_lines(rank, start, stop, end)
    ]
    painted: Spec = {"field": "hue", "type": "nominal", "scale": None}
    strength = {"field": "strength", "type": "quantitative", "scale": None}
    y = vega.number_axis(
        "top",
        "rank",
        values=[rank + 0.5 for rank in range(ranks)],
        grid=False,
        ticks=False,
        labelExpr="format(datum.value - 0.5, 'd')",
    )
    y["scale"] = {"domain": [0, ranks], "reverse": True, "nice": False}
    axis, ground = f"time since the step's first computation ({unit})", vega.color("ground")
    box = {"x2": "to", "y2": "bottom"}
    return vega.chart(
        title,
        vega.layer("rule", hatching, **box, color=vega.FAINT, strokeWidth=0.5),
        vega.layer("rect", bars, **box, color=painted, opacity=strength, stroke=ground, strokeWidth=0.3),
        vega.layer("text", texts, text="text", color={**painted, "field": "ink"}, fontSize=5.5),
        width=vega.PAGE,
        height=_ROW * ranks,
        x=vega.number_axis("from", axis, low=0.0, top=end * scale, grid=False),
        y=y,
    )


def _row_edges(rank: int) -> dict[str, float]:
    return {"top": rank + (1 - _FILL) / 2, "bottom": rank + (1 + _FILL) / 2}


def _idle_gaps(every: Sequence[PipelineSpan], end: int) -> Iterator[tuple[int, float, float]]:
    """Yield rank, from, to of every stretch without a computation."""
    by_rank = grouped(sorted(every, key=lambda s: s.start_ns), lambda s: s.rank)
    for rank, spans in by_rank.items():
        edges = [0, *(edge for span in spans for edge in (span.start_ns, span.end_ns)), end]
        yield from ((rank, start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop > start)


def _hatching_lines(rank: int, start: float, stop: float, end: float) -> Iterator[dict[str, float]]:
    """Return slanted lines at even distances over the whole picture, cut where the stretch ends."""
    run, distance = end * _ROW * _FILL / _PLOT, end / _LINES
    first = int((start - run) // distance)
    for number in range(first, int(stop // distance) + 1):
        foot = number * distance
        low, high = max(0.0, (start - foot) / run), min(1.0, (stop - foot) / run)
        if high > low:
            bottom, height = _row_edges(rank)["bottom"], _FILL
            slanted = {"top": bottom - low * height, "bottom": bottom - high * height}
            yield {"from": foot + low * run, "to": foot + high * run, **slanted}


Bubbles = Sequence[tuple[PipelineLayout, Measured]]
"""Measured bubbles of one schedule by layout, fewest micro-batches first."""


def pipeline_bubble_charts(cells: Sequence[CellEvidence]) -> Iterator[Chart]:
    """Yield one chart for each number of ranks that has runs with different micro-batches."""
    by_ranks: defaultdict[int, defaultdict[str, dict[int, tuple[PipelineLayout, Measured]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for _, pipeline in pipelines(cells):
        layout = pipeline.layout
        name = layout.schedule + (f", {layout.chunks} chunks" if layout.chunks > 1 else "")
        by_ranks[layout.ranks][name].setdefault(layout.micro_batches, (layout, pipeline.bubble))
    for ranks, names in sorted(by_ranks.items()):
        if all(len(points) == 1 for points in names.values()):
            continue
        title = f"pipeline of {counted(ranks, 'rank')}"
        curves = {name: [points[m] for m in sorted(points)] for name, points in names.items()}
        ends = [f"{name} {_bubble_text(points[0])}, {_bubble_text(points[-1])}" for name, points in curves.items()]
        caption = (
            f"Share of a {title} in which ranks compute nothing, over the micro-batches of a step; lines: the formula for "
            f"equal stages and free messages. Measured: {'; '.join(ends)}."
        )
        yield Chart(f"{ranks}-ranks", title, caption, _bubbles_spec(title, curves))


def _bubble_text(point: tuple[PipelineLayout, Measured]) -> str:
    layout, bubble = point
    return f"{format_percent(bubble.value)} at {layout.micro_batches}"


def _bubbles_spec(title: str, curves: Mapping[str, Bubbles]) -> Spec:
    """Draw points with intervals; lines: the formula."""
    hue, shape = vega.by_series(curves), vega.shape_by_series(curves)
    counts = sorted({layout.micro_batches for points in curves.values() for layout, _ in points})
    formula, points, ranges = [], [], []
    top = 0.0
    for name, bubbles in curves.items():
        for m in range(bubbles[0][0].micro_batches, bubbles[-1][0].micro_batches + 1):
            formula.append({"at": m, "value": 100 * replace(bubbles[0][0], micro_batches=m).bubble, "series": name})
        for layout, bubble in bubbles:
            at = {"at": layout.micro_batches}
            sentence = f"{name}, {layout.micro_batches} micro-batches: {format_percent(bubble.value)}"
            sentence += f", by the formula {format_percent(layout.bubble)}"
            points.append({**at, "value": 100 * bubble.value, "series": name, "said": sentence})
            if bubble.low is not None and bubble.high is not None:
                ranges.append({**at, "low": 100 * bubble.low, "high": 100 * bubble.high})
            top = max(top, layout.bubble, bubble.high or bubble.value)
    return vega.chart(
        title,
        vega.layer("line", formula, color=hue, strokeWidth=1),
        *vega.whiskers(ranges),
        vega.layer("point", points, color=hue, shape=shape, filled=True, size=28, opacity=1),
        width=vega.COLUMN,
        height=150,
        x=vega.doubling_axis("at", "micro-batches of a step", counts, (counts[0] / 1.2, counts[-1] * 1.2)),
        y=vega.number_axis("value", "bubble (% of the schedule's time)", low=0.0, top=100 * top * 1.08),
    )


VIEWS = (
    View("pipeline", "Pipeline schedule", tables=pipeline_table, charts=pipeline_charts),
    View("pipeline_bubble", "Bubble of pipelines", charts=pipeline_bubble_charts),
)
