"""Lines over epochs, steps or ranks: told apart by colour, dash and marker, and seen where they lie on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.report.charts._style import (
    COLORS,
    COLUMN_INCHES,
    FAINT,
    MARKERS,
    legend_below,
    legend_below_inches,
    plain_number,
    title_above,
    title_inches,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVES = 7

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (2, 2)), (0, (8, 2)), (0, (3, 1, 1, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """x as drawn, y in base units; low, high None: no interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run, or one series of runs."""

    name: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """dropped: first epochs that means leave out (shaded)."""

    key: str
    title: str
    curves: tuple[Curve, ...]
    x_axis: str
    y_axis: str
    scale: float = 1.0
    dropped: int = 0
    failed: tuple[str, ...] = ()


def draw_curves(data: Curves, axes: Axes, *, over: bool = False, legend: bool = True) -> None:
    """Lines with whiskers. over: each line thinner than the one below it, so that lines on each other all show."""
    count = len(data.curves)
    most = max(len(curve.points) for curve in data.curves)
    for number, curve in enumerate(data.curves):
        color = COLORS[number % len(COLORS)]
        xs = [p.x for p in curve.points]
        ys = [p.y * data.scale for p in curve.points]
        every = max(1, most // 8)
        axes.plot(
            xs,
            ys,
            color=color,
            label=curve.name,
            linewidth=1.0 + 0.75 * (count - 1 - number) if over else 1.3,
            linestyle=DASHES[number % len(DASHES)] if over else "-",
            marker=MARKERS[number % len(MARKERS)],
            markevery=(number * every // max(1, count) if over else 0, every),
            zorder=3 + number,
        )
        ranged = [p for p in curve.points if p.low is not None and p.high is not None]
        if ranged:
            axes.errorbar(
                [p.x for p in ranged],
                [p.y * data.scale for p in ranged],
                yerr=[
                    [max(0.0, p.y - (p.low or 0.0)) * data.scale for p in ranged],
                    [max(0.0, (p.high or 0.0) - p.y) * data.scale for p in ranged],
                ],
                fmt="none",
                ecolor=color,
                elinewidth=0.9,
                zorder=3,
            )
    if data.dropped:
        first = min(p.x for curve in data.curves for p in curve.points)
        axes.axvspan(first - 0.5, first + data.dropped - 0.5, color="#EEEEEE", zorder=0, linewidth=0)
    axes.set_xlabel(data.x_axis)
    axes.set_ylabel(data.y_axis)
    title_above(axes, data.title, COLUMN_INCHES)
    if legend:
        legend_below(axes, legend_names(data), size_curves(data)[0])


def whole_numbers(axes: Axes) -> None:
    """Ticks of the axis across at whole numbers of what is drawn only: there is no epoch 2.5, nor one before the first."""
    from matplotlib.ticker import MaxNLocator

    first = axes.dataLim.x0
    axes.set_xlim(left=max(axes.get_xlim()[0], first - 0.9))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))


def plain_values(axes: Axes) -> None:
    """Numbers of the axis upwards without exponents or offsets."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: plain_number(y)))


def ideal_line(axes: Axes, ends: tuple[float, float], base: float) -> None:
    """Speed-up that n ranks can have at most: n / ranks of the baseline."""
    axes.plot(
        ends,
        [x / base for x in ends],
        color=FAINT,
        linewidth=0.9,
        linestyle=(0, (5, 2)),
        zorder=1,
        label="ideal",
    )


def legend_names(data: Curves) -> tuple[str, ...]:
    return tuple(curve.name for curve in data.curves)


def size_curves(data: Curves) -> tuple[float, float]:
    extra = legend_below_inches(legend_names(data), COLUMN_INCHES) + title_inches(data.title, COLUMN_INCHES)
    return COLUMN_INCHES, 2.45 + extra
