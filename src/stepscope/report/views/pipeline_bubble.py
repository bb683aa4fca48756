"""How the bubble of a pipeline shrinks with more micro-batches, measured beside the formula."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.mesh import PipelineLayout
from stepscope.records.nouns import Measured
from stepscope.report.vega import (
    COLUMN,
    Spec,
    by_series,
    chart,
    doubling_axis,
    layer,
    number_axis,
    shape_by_series,
    sig,
    whiskers,
)
from stepscope.report.view import Figures, View
from stepscope.results.evidence import CellEvidence
from stepscope.results.pipeline import pipelines


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleCurve:
    """One schedule: measured bubbles by layout, fewest micro-batches first."""

    name: str
    points: tuple[tuple[PipelineLayout, Measured], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleCurves:
    key: str
    title: str
    curves: tuple[BubbleCurve, ...]


def prepare(cells: Sequence[CellEvidence]) -> tuple[BubbleCurves, ...]:
    """One chart for each number of ranks that has runs with different micro-batches."""
    by_ranks: defaultdict[int, defaultdict[str, dict[int, tuple[PipelineLayout, Measured]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for _, found in pipelines(cells):
        layout = found.layout
        name = layout.schedule + (f", {layout.chunks} chunks" if layout.chunks > 1 else "")
        by_ranks[layout.ranks][name].setdefault(layout.micro_batches, (layout, found.bubble))
    return tuple(
        BubbleCurves(
            key=f"{ranks}-ranks",
            title=f"pipeline of {counted(ranks, 'rank')}",
            curves=tuple(
                BubbleCurve(name=name, points=tuple(points[m] for m in sorted(points)))
                for name, points in names.items()
            ),
        )
        for ranks, names in sorted(by_ranks.items())
        if any(len(points) > 1 for points in names.values())
    )


def draw(data: BubbleCurves) -> Spec:
    """Points with intervals; lines: the formula."""
    names = [curve.name for curve in data.curves]
    look = {"color": by_series(names), "shape": shape_by_series(names)}
    counts = sorted({layout.micro_batches for curve in data.curves for layout, _ in curve.points})
    lines, points, ranges = [], [], []
    for curve in data.curves:
        layout = curve.points[0][0]
        for m in range(curve.points[0][0].micro_batches, curve.points[-1][0].micro_batches + 1):
            expected = replace(layout, micro_batches=m).bubble
            lines.append({"at": m, "value": sig(100 * expected), "series": curve.name})
        for layout, found in curve.points:
            told = f"{curve.name}, {layout.micro_batches} micro-batches: {format_percent(found.value)}"
            told += f", by the formula {format_percent(layout.bubble)}"
            points.append(
                {"at": layout.micro_batches, "value": sig(100 * found.value), "series": curve.name, "said": told}
            )
            if found.low is not None and found.high is not None:
                ranges.append({"at": layout.micro_batches, "low": sig(100 * found.low), "high": sig(100 * found.high)})
    layouts = [(layout, found) for curve in data.curves for layout, found in curve.points]
    top = 100 * max(max(layout.bubble, found.high or found.value) for layout, found in layouts)
    return chart(
        data.title,
        [
            layer("line", lines, {"color": look["color"]}, strokeWidth=1),
            *whiskers(ranges),
            layer("point", points, look, filled=True, size=28, opacity=1),
        ],
        width=COLUMN,
        height=150,
        x=doubling_axis("at", "micro-batches of a step", counts, (counts[0] / 1.2, counts[-1] * 1.2)),
        y=number_axis("value", "bubble (% of the schedule's time)", low=0.0, top=top * 1.08),
    )


def caption(data: BubbleCurves) -> str:
    ends = [
        f"{curve.name} {format_percent(curve.points[0][1].value)} at {curve.points[0][0].micro_batches}, "
        f"{format_percent(curve.points[-1][1].value)} at {curve.points[-1][0].micro_batches}"
        for curve in data.curves
    ]
    return (
        f"Share of a {data.title} in which ranks compute nothing, over the micro-batches of a step; lines: the formula for "
        f"equal stages and free messages. Measured: {'; '.join(ends)}."
    )


VIEW = View(
    key="pipeline_bubble",
    title="Bubble of pipelines",
    figures=Figures(needs=("cells",), prepare=prepare, chart=draw, caption=caption),
)
