"""Calibrated models against what they were fitted to: predicted over measured time, and their ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.calibration import Calibration, CollectiveFit
from stepscope.report.charts._common import Chart
from stepscope.report.charts._style import BAD, COLORS, COLUMN_INCHES, FAINT, log_axis, size_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def draw(data: FitChart, axes: Axes) -> None:
    """Above: predicted over measured time; below: their ratio. ``axes`` is a subplot and shares its place with a second."""
    place = axes.get_subplotspec()
    assert place is not None, "a chart is drawn on a subplot"
    above_below = place.subgridspec(2, 1, height_ratios=(1.7, 1.0))
    axes.set_subplotspec(above_below[0])
    below = axes.figure.add_subplot(above_below[1], sharex=axes)
    measured = [p.measured for p in data.points]
    ends = [min(measured) / 1.3 / 1e3, max(measured) * 1.3 / 1e3]
    us = [m / 1e3 for m in measured]
    models = (
        ("straight line", [p.line for p in data.points], BAD, "s", data.line_mean, data.line_max),
        ("curve", [p.curve for p in data.points], COLORS[0], "o", data.curve_mean, data.curve_max),
    )
    axes.plot(ends, ends, color=FAINT, linewidth=0.9, zorder=1, label="as measured")
    below.axhline(1.0, color=FAINT, linewidth=0.9, zorder=1)
    if data.band is not None:
        low, high = 1 / (1 + data.band), 1 + data.band
        for panel, at in ((axes, ends), (below, [1.0, 1.0])):
            panel.fill_between(
                ends, [y * low for y in at], [y * high for y in at], color=COLORS[0], alpha=0.15, linewidth=0
            )
    for name, predicted, color, marker, mean, largest in models:
        said = f"{name}: mean error {_percent(mean)}, largest {_percent(largest)}"
        inner = "white" if name == "straight line" else color
        axes.plot(
            us,
            [p / 1e3 for p in predicted],
            color=color,
            marker=marker,
            label=said,
            linewidth=0.9,
            markerfacecolor=inner,
        )
        ratios = [p / m for p, m in zip(predicted, measured, strict=True)]
        below.plot(us, ratios, color=color, marker=marker, linewidth=0.9, markerfacecolor=inner)
    axes.set_xlim(*ends)
    log_axis(axes)
    log_axis(axes, which="x")
    _ratio_axis(below)
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("predicted (µs)")
    below.set_ylabel("pred. / meas. (x)")
    below.set_xlabel("measured time per call (µs)")
    axes.set_title(data.title)
    axes.legend(loc="upper left", fontsize=6.5)


def _ratio_axis(below: Axes) -> None:
    """A logarithmic axis around 1: half and double are as far away."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    below.set_yscale("log")
    low, high = below.get_ylim()
    reach = max(1.25, high, 1 / low)
    below.set_ylim(1 / reach / 1.05, reach * 1.05)
    steps = (
        (1.2,) if reach < 1.5 else (1.5,) if reach < 2.2 else (2, 4) if reach < 6 else (2, 10) if reach < 30 else (10,)
    )
    below.yaxis.set_major_locator(FixedLocator(sorted({1.0, *steps, *(1 / s for s in steps)})))
    below.yaxis.set_minor_locator(NullLocator())
    below.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2g}"))
    below.yaxis.set_minor_formatter(NullFormatter())


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
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def size_inches(data: FitChart) -> tuple[float, float]:
    del data
    return COLUMN_INCHES, 3.5


CHART = Chart(
    key="calibration",
    title="Calibration: predicted against measured",
    needs=("calibration",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
)
