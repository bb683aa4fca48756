"""Drawing sweeps over size: one line each, with what calls scatter, a fitted curve and the link's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.words import counted
from stepscope.report.charts._common import SizeChart
from stepscope.report.charts._style import (
    COLORS,
    COLUMN_INCHES,
    FAINT,
    INK,
    MARKERS,
    Corner,
    legend,
    legend_inches,
    log_axis,
    size_axis,
    size_tick,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FITTED = "fitted curve"


def draw_lines(chart: SizeChart, axes: Axes, *, label: str, scale: float, inside: Corner) -> None:
    """All lines of ``chart``, values times ``scale``; ``label`` names the value and its unit."""
    for number, line in enumerate(chart.lines):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        sizes = [p.size_bytes for p in line.points]
        axes.plot(
            sizes,
            [p.value * scale for p in line.points],
            color=color,
            marker=marker,
            label=line.name,
            zorder=3,
        )
        spread = [(p.size_bytes, p.fast, p.slow) for p in line.points if p.fast is not None and p.slow is not None]
        if spread:
            at = [size for size, _, _ in spread]
            ends = [(min(fast, slow) * scale, max(fast, slow) * scale) for _, fast, slow in spread]
            axes.fill_between(
                at, [low for low, _ in ends], [high for _, high in ends], color=color, alpha=0.18, linewidth=0
            )
        if line.fitted:
            axes.plot(
                [size for size, _ in line.fitted],
                [value * scale for _, value in line.fitted],
                color=INK,
                linestyle=(0, (3, 2)),
                linewidth=0.9,
                zorder=4,
            )
    if any(line.fitted for line in chart.lines):
        axes.plot([], [], color=INK, linestyle=(0, (3, 2)), linewidth=0.9, label=FITTED)
    log_axis(axes)
    size_axis(axes, [p.size_bytes for line in chart.lines for p in line.points])
    if chart.peak is not None:
        _peak(axes, chart.peak * scale)
        log_axis(axes)
    axes.set_ylabel(label)
    axes.set_title(chart.title)
    names = legend_names(chart)
    legend(axes, inside=inside, longest=max(map(len, names)), entries=len(names))


def _peak(axes: Axes, peak: float) -> None:
    axes.axhline(peak, color=FAINT, linewidth=0.9, linestyle=(0, (5, 2)), zorder=1)
    axes.annotate(
        f"link peak {peak:.4g} GB/s",
        xy=(0.015, peak),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize=6.5,
        color=FAINT,
    )
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, peak * 1.8))


def legend_names(chart: SizeChart) -> list[str]:
    return [line.name for line in chart.lines] + ([FITTED] if any(line.fitted for line in chart.lines) else [])


def size_inches(chart: SizeChart) -> tuple[float, float]:
    names = legend_names(chart)
    return COLUMN_INCHES, 2.5 + legend_inches(max(map(len, names)), len(names))


def lines_caption(chart: SizeChart, what: str) -> str:
    """Which operation, sizes and sweeps, what points and bands are, where the values end."""
    points = [p for line in chart.lines for p in line.points]
    sizes = [p.size_bytes for p in points]
    ranged = f"{size_tick(min(sizes))} to {size_tick(max(sizes))}" if len(set(sizes)) > 1 else size_tick(sizes[0])
    names = "; ".join(line.name for line in chart.lines)
    parts = [
        f"{what} of {chart.title} over message size, {ranged}; {counted(len(chart.lines), 'line')}: {names}.",
        "Points: means over the calls, as imported."
        if chart.means
        else f"Points: median over the calls, each as long as on its slowest rank; {chart.pacing}.",
    ]
    if any(p.fast is not None and p.slow is not None for p in points):
        parts.append("Bands: from the fastest call to the 90th percentile of the calls.")
    if any(line.fitted for line in chart.lines):
        parts.append("Dashed: the calibrated curve.")
    return " ".join(parts)
