"""Speed-up over ranks, strong and weak scaling apart, with the line that nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.charts._common import Chart
from stepscope.report.charts._curves import (
    MAX_CURVES,
    Curve,
    CurvePoint,
    Curves,
    draw_curves,
    ideal_line,
)
from stepscope.report.charts._runs import facets, grouped, model_on, names, parts, scaled
from stepscope.report.charts._style import (
    COLUMN_INCHES,
    legend_below,
    legend_below_inches,
    plain_number,
    title_inches,
)
from stepscope.report.charts._text import file_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RULES = {
    "strong": ("strong scaling", " Strong: the same global batch (or data) on more ranks."),
    "weak": ("weak scaling", " Weak: the same batch a rank on more ranks."),
    None: ("scaling", " It is not known whether the global batch or each rank's was kept."),
}

LOG_FROM = 8
"""From this ratio of ranks on, both axes double at each step."""

IDEAL = "ideal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingChart:
    """Lines of speed-up (x of the baseline on ``base`` ranks). rule: strong, weak, or None where it is not known."""

    key: str
    title: str
    lines: Curves
    base: int
    rule: str | None


def prepare(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow]) -> tuple[ScalingChart, ...]:
    """One chart a data set, rule and baseline's ranks; a line for everything else, if it has two numbers of ranks."""
    found = scaled(runs, scaling)
    baselines = {row.run_id: row for _, row in found if row.is_baseline}
    charts: list[ScalingChart] = []
    several = [(run, row) for run, row in found if not row.is_baseline]

    def about(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, str, str | None, int]:
        run, row = pair
        told = facets(run)
        return told["hardware"], told["dataset"], row.scaling, row.baseline_world_size

    machines = len({facets(run)["hardware"] for run, _ in several}) > 1
    for (machine, dataset, rule, base), mine in grouped(several, about).items():
        series = list(grouped(mine, _series).values())
        called = names([one[0][0] for one in series], known=("hardware", "dataset", "ranks"))
        if len(series) == 1:  # nothing to tell it from
            called = (facets(series[0][0][0])["strategy"] or "measured",)
        curves = [Curve(name=name, points=_points(one, baselines)) for one, name in zip(series, called, strict=True)]
        curves = [curve for curve in curves if len(curve.points) > 1]
        models = {facets(run)["model"] for run, _ in mine}
        where = model_on(models.pop() if len(models) == 1 else "", dataset) or "all runs"
        split = parts(curves, MAX_CURVES) if curves else []
        for number, part in enumerate(split, start=1):
            several_charts = f" ({number} of {len(split)})" if len(split) > 1 else ""
            of = [where, machine if machines else "", _RULES[rule][0]]
            title = ", ".join(text for text in of if text) + several_charts
            name = [
                rule or "unknown",
                dataset,
                machine if machines else "",
                str(number) if number > 1 else "",
            ]
            key = file_part("-".join(text for text in name if text))
            clash = sum(chart.lines.key == key for chart in charts)
            charts.append(
                ScalingChart(
                    key=f"{key}-{clash + 1}" if clash else key,
                    title=title,
                    lines=Curves(key=key, title=title, curves=tuple(part), x_axis="ranks", y_axis="speed-up (x)"),
                    base=base,
                    rule=rule,
                )
            )
    return tuple(charts)


def _series(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, ...]:
    """What one line has in common: everything but ranks, and the batch that follows from them."""
    run, row = pair
    told = facets(run)
    return (*(told[f] for f in ("model", "strategy", "precision", "accumulation", "batch")), row.baseline_id)


def _points(
    series: Sequence[tuple[TrainingRun, ScalingRow]], baselines: dict[str, ScalingRow]
) -> tuple[CurvePoint, ...]:
    rows = [row for _, row in series]
    base = baselines.get(rows[0].baseline_id)
    points = [CurvePoint(x=row.world_size, y=row.speedup, low=row.low, high=row.high) for row in rows]
    if base is not None:
        points.append(CurvePoint(x=base.world_size, y=base.speedup))
    return tuple(sorted(points, key=lambda p: p.x))


def draw(data: ScalingChart, axes: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    draw_curves(data.lines, axes, legend=False)
    ranks = sorted({p.x for curve in data.lines.curves for p in curve.points})
    ideal_line(axes, (ranks[0], ranks[-1]), data.base)
    if ranks[-1] / ranks[0] >= LOG_FROM:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        low = min(min(p.y for p in curve.points) for curve in data.lines.curves)
        doublings = [2.0**n for n in range(-6, 12) if low / 2 < 2.0**n <= 2 * ranks[-1] / data.base]
        axes.yaxis.set_major_locator(FixedLocator(doublings))
    else:
        axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: plain_number(x)))
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(ranks))
    legend_below(axes, _entries(data), COLUMN_INCHES)


def _entries(data: ScalingChart) -> tuple[str, ...]:
    return (*(curve.name for curve in data.lines.curves), IDEAL)


def caption(data: ScalingChart) -> str:
    said = []
    for curve in data.lines.curves[:5]:
        last = curve.points[-1]
        share = format_percent(last.y * data.base / last.x, digits=0)
        said.append(f"{curve.name}: {last.y:.2f}x on {counted(int(last.x), 'rank')} (efficiency {share})")
    whisker = any(p.low is not None for curve in data.lines.curves for p in curve.points)
    return (
        f"Speed-up over {counted(data.base, 'rank')} on {data.title}. {'; '.join(said)}.{_RULES[data.rule][1]}"
        f" Dashed: as much faster as there are more ranks.{' Whiskers: 95 % interval.' if whisker else ''}"
    )


def size_inches(data: ScalingChart) -> tuple[float, float]:
    extra = legend_below_inches(_entries(data), COLUMN_INCHES) + title_inches(data.title, COLUMN_INCHES)
    return COLUMN_INCHES, 2.45 + extra


CHART = Chart(
    key="scaling",
    title="Scaling",
    needs=("runs", "scaling"),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
)
