"""Calibrated models against what they were fitted to: predicted over measured time, and their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.calibration import Calibration, CollectiveFit
from stepscope.report.names import file_part
from stepscope.report.vega import (
    COLORS,
    COLUMN,
    FAINT,
    Spec,
    by_series,
    doubling_axis,
    head,
    layer,
    log_axis,
    shape_by_series,
    sig,
    size_tick,
)
from stepscope.report.views._common import Figures, View

NEAR = 1.1
"""A straight line within this factor of every measured time is not said to fail anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """Times in ns."""

    size_bytes: int
    measured: float
    line: float
    curve: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitChart:
    """One fit. band: relative error expected of the curve at sizes it has not seen (cross-validated); None: not known.

    ``*_mean``, ``*_max``: relative errors of the two models over the points.
    """

    key: str
    title: str
    points: tuple[FitPoint, ...]
    band: float | None
    line_mean: float
    line_max: float
    curve_mean: float
    curve_max: float
    family: str


def prepare(calibration: Calibration) -> tuple[FitChart, ...]:
    """One chart a fit that says how far off it is at each size; two fits are never called the same."""
    fits = [fit for fit in calibration.fits if fit.errors]
    names = [_title(fit) for fit in fits]
    return tuple(
        FitChart(
            key=_key(fit) + (f"-{names[:n].count(name) + 1}" if names.count(name) > 1 else ""),
            title=name,
            points=tuple(
                FitPoint(size_bytes=e.size_bytes, measured=e.measured_ns, line=e.line_ns, curve=e.curve_ns)
                for e in sorted(fit.errors, key=lambda e: e.measured_ns)
            ),
            band=fit.curve.cross_validated_error,
            line_mean=fit.line.mean_relative_error,
            line_max=fit.line.max_relative_error,
            curve_mean=fit.curve.mean_relative_error,
            curve_max=fit.curve.max_relative_error,
            family=fit.curve.family,
        )
        for n, (fit, name) in enumerate(zip(fits, names, strict=True))
    )


def chart(data: FitChart) -> Spec:
    """Above: predicted over measured time; below: their ratio, half and double as far away."""
    measured = [p.measured / 1e3 for p in data.points]
    ends = [sig(min(measured) / 1.3), sig(max(measured) * 1.3)]
    line = f"straight line: mean error {_percent(data.line_mean)}, largest {_percent(data.line_max)}"
    curve = f"curve: mean error {_percent(data.curve_mean)}, largest {_percent(data.curve_max)}"
    rows: list[dict[str, Any]] = [
        {
            "measured": sig(p.measured / 1e3),
            "predicted": sig(time / 1e3),
            "ratio": sig(time / p.measured),
            "series": name,
            "said": f"{size_tick(p.size_bytes)}, {name.partition(':')[0]}: {format_duration(time)} predicted,"
            f" {format_duration(p.measured)} measured",
        }
        for p in data.points
        for name, time in ((line, p.line), (curve, p.curve))
    ]
    hue = by_series((line, curve), (COLORS[1], COLORS[0]))
    hue["legend"] = {"title": None, "columns": 1}
    shape = shape_by_series((line, curve))
    shape["scale"] = {"domain": [line, curve], "range": ["square", "circle"]}
    across = log_axis("measured", "measured time per call (µs)", ends)

    def panel(field: str, y: Spec, height: int, x: Spec, same: Sequence[float]) -> Spec:
        along = {"y": {"field": field, "type": "quantitative"}}
        exact = [{"measured": x_, field: y_} for x_, y_ in zip(ends, same, strict=True)]
        layers = [layer("line", exact, along, color=FAINT, strokeWidth=0.9)]
        if data.band is not None:
            low, high = 1 / (1 + data.band), 1 + data.band
            band = [{**row, "low": sig(row[field] * low), "high": sig(row[field] * high)} for row in exact]
            span = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
            layers.insert(0, layer("area", band, span, color=COLORS[0], opacity=0.15, clip=True))
        bare = [{k: v for k, v in row.items() if k != "said"} for row in rows]
        layers.append(layer("line", bare, {**along, "color": hue}, strokeWidth=0.9))
        layers.append(layer("point", rows, {**along, "color": hue, "shape": shape}, filled=True, size=16, opacity=1))
        return {"width": COLUMN - 60, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}

    reach = max(1.25, *(max(row["ratio"], 1 / row["ratio"]) for row in rows))
    steps = (
        (1.2,) if reach < 1.5 else (1.5,) if reach < 2.2 else (2, 4) if reach < 6 else (2, 10) if reach < 30 else (10,)
    )
    ticks = [sig(tick) for tick in sorted({1.0, *steps, *(1 / s for s in steps)})]
    ratio = doubling_axis("ratio", "pred. / meas. (x)", ticks, (1 / reach / 1.05, reach * 1.05), format=".2~g")
    ratio["axis"].pop("labelExpr")
    above = log_axis("predicted", "predicted (µs)", [*ends, *(row["predicted"] for row in rows)])
    bare = {**across, "title": None, "axis": {**across["axis"], "labels": False}}
    return {
        **head(data.title, COLUMN),
        "spacing": 8,
        "vconcat": [panel("predicted", above, 110, bare, ends), panel("ratio", ratio, 60, across, (1.0, 1.0))],
    }


def caption(data: FitChart) -> str:
    worst = max(data.points, key=lambda p: max(p.line / p.measured, p.measured / p.line))
    off = worst.line / worst.measured
    where = f", most at {size_tick(worst.size_bytes)}: it says {off:.2g} times what was measured"
    if max(off, 1 / off) < NEAR:
        where = ""
    parts = [
        f"Predicted over measured time of {data.title}: {counted(len(data.points), 'size')} from"
        f" {format_duration(data.points[0].measured)} to {format_duration(data.points[-1].measured)}; below, their ratio.",
        f"The curve ({data.family}) is off by {_percent(data.curve_mean)} on average and {_percent(data.curve_max)} at"
        f" most, the straight line by {_percent(data.line_mean)} and {_percent(data.line_max)}{where}.",
    ]
    if data.band is not None:
        parts.append(f"Band: ±{_percent(data.band)}, the curve's mean error at sizes left out of the fit.")
    return " ".join(parts)


def _percent(fraction: float) -> str:
    return (f"{fraction:.1%}" if 0 < fraction < 0.0095 else f"{fraction:.0%}").replace("%", " %")


def _title(fit: CollectiveFit) -> str:
    pattern = f" {fit.pattern}" if fit.pattern else ""
    network = f", {fit.network}" if fit.network else ""
    place = f" ({fit.placement})" if "+" in fit.placement else ""
    place += ", in place" if fit.in_place else ""
    return (
        f"{fit.op}{pattern}, {counted(fit.world_size, 'rank')}{place}, {fit.dtype}, {fit.device}/{fit.backend}{network}"
    )


def _key(fit: CollectiveFit) -> str:
    parts = [fit.op, fit.pattern, f"{fit.world_size}-ranks", fit.placement if "+" in fit.placement else None]
    parts += [fit.dtype, "in-place" if fit.in_place else None, fit.device, fit.backend, fit.network]
    text = "-".join(part for part in parts if part)
    return file_part(text)


VIEW = View(
    key="calibration",
    title="Calibration: predicted against measured",
    figures=Figures(
        needs=("calibration",),
        prepare=prepare,
        chart=chart,
        caption=caption,
    ),
)
