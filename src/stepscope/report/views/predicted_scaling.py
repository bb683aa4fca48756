"""Predicted speed over the number of GPUs: the curve with its 80% band, measured points, and where it bends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.report.vega import COLORS, COLUMN, FAINT, INK, Spec, chart, doubling_axis, layer, log_axis, sig
from stepscope.report.view import Figures, View


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """Work per second of the whole job on so many GPUs. low, high: 80% interval. measured: not predicted."""

    gpus: int
    value: float
    low: float | None = None
    high: float | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCurve:
    """unit: ``tokens/s``, ``samples/s``. knee: GPUs up to which the curve is good."""

    key: str
    title: str
    unit: str
    points: tuple[ScalePoint, ...]
    knee: int | None = None


def prepare(scale_curves: Sequence[ScaleCurve]) -> tuple[ScaleCurve, ...]:
    return tuple(curve for curve in scale_curves if len(curve.points) > 1)


def draw(data: ScaleCurve) -> Spec:
    """Both axes logarithmic; dashed: as fast as the first point times the GPUs."""
    points = sorted(data.points, key=lambda p: p.gpus)
    predicted = [p for p in points if not p.measured]
    first = points[0]
    gpus = sorted({p.gpus for p in points})
    ideal = [{"x": n, "y": sig(first.value * n / first.gpus)} for n in (gpus[0], gpus[-1])]
    values = [v for p in points for v in (p.value, p.low, p.high) if v is not None] + [row["y"] for row in ideal]
    along: dict[str, Any] = {"y": {"field": "y", "type": "quantitative"}}
    band = [{"x": p.gpus, "y": sig(p.low), "end": sig(p.high)} for p in predicted if p.low and p.high]
    layers = [layer("line", ideal, along, color=FAINT, strokeDash=[4, 2], strokeWidth=0.9)]
    if band:
        layers.append(layer("area", band, {**along, "y2": {"field": "end"}}, color=COLORS[0], opacity=0.2))
    if data.knee is not None and gpus[0] <= data.knee <= gpus[-1]:
        edge = {"y": {"value": 0}, "y2": {"value": "height"}}
        layers.append(layer("rule", [{"x": data.knee}], edge, color=INK, strokeDash=[2, 2], strokeWidth=0.9))
    layers.append(
        layer("line", [{"x": p.gpus, "y": sig(p.value)} for p in predicted], along, color=COLORS[0], strokeWidth=1.2)
    )
    for measured, color in ((False, COLORS[0]), (True, INK)):
        rows = [
            {"x": p.gpus, "y": sig(p.value), "said": f"{p.gpus} GPUs: {p.value:,.4g} {data.unit}"}
            for p in points
            if p.measured is measured
        ]
        if rows:
            layers.append(layer("point", rows, along, color=color, filled=True, size=22, opacity=1))
    room = (gpus[0] / 1.15, gpus[-1] * 1.15)
    return chart(
        data.title,
        layers,
        width=COLUMN,
        height=150,
        x=doubling_axis("x", "GPUs", gpus, room),
        y=log_axis("y", f"speed ({data.unit})", values),
    )


def caption(data: ScaleCurve) -> str:
    points = sorted(data.points, key=lambda p: p.gpus)
    first, last = points[0], points[-1]
    share = last.value / first.value / (last.gpus / first.gpus)
    knee = "" if data.knee is None else f" Vertical line: the knee, {data.knee} GPUs."
    measured = " Black points: measured." if any(p.measured for p in points) else ""
    return (
        f"Predicted speed ({data.unit}) over GPUs with its 80% interval; dashed: proportional to the GPUs. {last.gpus} GPUs "
        f"reach {share:.0%} of {first.gpus} GPUs' speed per GPU.{knee}{measured}"
    )


VIEW = View(
    key="predicted_scaling",
    title="Predicted scaling",
    figures=Figures(needs=("scale_curves",), prepare=prepare, chart=draw, caption=caption),
)
