"""Speed-up and efficiency of runs against their baselines, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.charts._common import Chart
from stepscope.report.charts._runs import by_dataset, facets, names, scaled
from stepscope.report.charts._style import (
    BAD,
    BEHIND,
    COLORS,
    COLUMN_INCHES,
    FAINT,
    INK,
    PAGE_INCHES,
    boxes,
    from_zero,
    text_at,
    tick_lines,
    title_above,
    title_inches,
    whiskers,
)
from stepscope.report.charts._text import lines
from stepscope.stats.scaling import EXCELLENT, GOOD

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """One run on ``ratio`` times as many ranks as its baseline (what the speed-up would be at best)."""

    name: str
    ratio: float
    speedup: float
    low: float | None
    high: float | None
    efficiency: float
    rating: str | None
    scaling: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupChart:
    """Runs on one data set. basis: what the speed-ups are made of."""

    key: str
    title: str
    runs: tuple[ScaledRun, ...]
    basis: tuple[str, ...]


def prepare(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow]) -> tuple[SpeedupChart, ...]:
    """One chart a data set (and model, where there are many); baselines themselves are not shown."""
    found = {run.run_id: (run, row) for run, row in scaled(runs, scaling) if not row.is_baseline}
    charts = []
    for part in by_dataset((run for run, _ in found.values()), MAX_ROWS):
        mine = part.runs
        rows = [found[run.run_id][1] for run in mine]
        charts.append(
            SpeedupChart(
                key=part.key,
                title=part.title,
                runs=tuple(
                    _scaled_run(run, row, name) for run, row, name in zip(mine, rows, _names(mine), strict=True)
                ),
                basis=tuple(dict.fromkeys(row.basis for row in rows)),
            )
        )
    return tuple(charts)


def _names(runs: Sequence[TrainingRun]) -> tuple[str, ...]:
    """With the ranks always: a speed-up says nothing without them."""
    return tuple(
        name if facets(run)["ranks"] in name else ", ".join(t for t in (name, facets(run)["ranks"]) if t)
        for run, name in zip(runs, names(runs, known=("dataset",)), strict=True)
    )


def _scaled_run(run: TrainingRun, row: ScalingRow, name: str) -> ScaledRun:
    del run
    return ScaledRun(
        name=name,
        ratio=row.world_size / row.baseline_world_size,
        speedup=row.speedup,
        low=row.low,
        high=row.high,
        efficiency=row.efficiency,
        rating=row.rating,
        scaling=row.scaling,
    )


def draw(data: SpeedupChart, axes: Axes) -> None:
    """Left: speed-up, a tick at what it can be at most; right: efficiency, lines at 0.8 and 0.9."""
    place = axes.get_subplotspec()
    assert place is not None, "a chart is drawn on a subplot"
    left_right = place.subgridspec(1, 2, width_ratios=(1.0, 1.0))
    axes.set_subplotspec(left_right[0])
    right = axes.figure.add_subplot(left_right[1], sharey=axes)
    slow = [run.speedup < 1 for run in data.runs]
    top = max(max(run.ratio, run.speedup, run.high or 0.0) for run in data.runs)
    values = ([run.speedup for run in data.runs], [run.efficiency for run in data.runs])
    for panel, found, color in zip((axes, right), values, (COLORS[0], COLORS[2]), strict=True):
        bars = [(0.0, at - 0.33, value, 0.66) for at, value in enumerate(found)]
        boxes(panel, [bar for bar, bad in zip(bars, slow, strict=True) if not bad], color=color)
        boxes(panel, [bar for bar, bad in zip(bars, slow, strict=True) if bad], color=BAD)
    ranged = [
        (float(at), run.low, run.high)
        for at, run in enumerate(data.runs)
        if run.low is not None and run.high is not None
    ]
    shares = [run.efficiency / run.speedup for run in data.runs]
    whiskers(axes, ranged, across=True, cap=0.3)
    whiskers(
        right,
        [(at, low * shares[int(at)], high * shares[int(at)]) for at, low, high in ranged],
        across=True,
        cap=0.3,
    )
    for at, run in enumerate(data.runs):
        axes.plot([run.ratio] * 2, [at - 0.38, at + 0.38], color=INK, linewidth=1.1, zorder=3)
        end = max(run.speedup, run.high or 0.0)
        past = run.ratio if end < run.ratio < end + 0.3 * top else end  # beside the tick, not on it
        text_at(axes, past, at, f"{run.speedup:.2f}x", dx=2, va="center", bbox=BEHIND)
        text_at(
            right,
            end * shares[at],
            at,
            format_percent(run.efficiency, digits=1),
            dx=2,
            va="center",
            bbox=BEHIND,
        )
    room = 1.2 if size_inches(data)[0] > COLUMN_INCHES else 1.5
    ticks = 5 if room < 1.5 else 3
    from_zero(axes, top * room, which="x", ticks=ticks)
    from_zero(right, max(1.02, *(room * r.efficiency for r in data.runs)), which="x", ticks=ticks)
    for level, side, away in ((GOOD, "right", -1.5), (EXCELLENT, "left", 1.5)):
        right.axvline(level, color=FAINT, linewidth=0.9, linestyle=(0, (4, 2)), zorder=3)
        text_at(right, level, -0.55, f"{level:g}", dx=away, dy=1.5, ha=side, va="bottom", color=FAINT, room=True)
    wrap = 24 if size_inches(data)[0] == COLUMN_INCHES else 48
    axes.set_yticks(range(len(data.runs)), [lines(run.name, wrap) for run in data.runs])
    axes.set_ylim(len(data.runs) - 0.45, -0.55)
    right.tick_params(labelleft=False)
    for panel in (axes, right):
        tick_lines(panel, "x")
    axes.set_xlabel("speed-up (x)")
    right.set_xlabel("efficiency")
    title_above(axes, data.title, size_inches(data)[0], edge=True)


def caption(data: SpeedupChart) -> str:
    said = [
        f"{run.name}: {run.speedup:.2f}x of {run.ratio:g}x, efficiency {format_percent(run.efficiency, digits=1)}"
        + (f" ({run.rating})" if run.rating else "")
        for run in data.runs
    ]
    more = f" and {len(said) - 6} more" if len(said) > 6 else ""
    kinds = {run.scaling for run in data.runs}
    rules = {
        "strong": "strong scaling: the same global batch (or data)",
        "weak": "weak scaling: the same batch a rank",
        None: "it is not known whether the batch or each rank's batch was kept",
    }
    how = "; ".join(rules[kind] for kind in ("strong", "weak", None) if kind in kinds)
    whisker = " Whiskers: 95 % interval." if any(run.low is not None for run in data.runs) else ""
    return (
        f"Speed-up and efficiency on {data.title}, {counted(len(data.runs), 'run')}: {'; '.join(said[:6])}{more}."
        f" From {', '.join(data.basis)}; {how}. Black ticks: as much faster as there are more ranks; dashed: efficiency 0.8"
        f" (above: good) and 0.9 (excellent). Orange: slower than the baseline.{whisker}"
    )


def size_inches(data: SpeedupChart) -> tuple[float, float]:
    longest = max(len(run.name) for run in data.runs)
    width = COLUMN_INCHES if longest <= 24 else PAGE_INCHES
    wrap = 24 if width == COLUMN_INCHES else 48
    rows = sum(0.27 if len(run.name) > wrap else 0.22 for run in data.runs)
    return width, 0.85 + title_inches(data.title, width, edge=True) + max(0.5, rows)


def stem(data: SpeedupChart) -> str:
    """``IMDB_speedup_efficiency``."""
    return f"{data.key}_speedup_efficiency"


CHART = Chart(
    key="speedup_efficiency",
    title="Speed-up and efficiency",
    needs=("runs", "scaling"),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
    stem=stem,
)
