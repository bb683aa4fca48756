"""Speed-up and efficiency of runs against their baselines, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.units import format_percent
from stepscope.core.words import counted, listed
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.names import lines
from stepscope.report.vega import (
    COLORS,
    COLUMN,
    FAINT,
    INK,
    PAGE,
    WIDE,
    Spec,
    apart,
    head,
    layer,
    name_axis,
    number_axis,
    sig,
    whiskers,
    words,
)
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import by_dataset, facets, scaled
from stepscope.report.views._stacks import NAME_CHARS
from stepscope.results.scaling import EXCELLENT, GOOD

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """One run with what its speed-up would be at best (``ratio``)."""

    name: str
    row: ScalingRow

    @property
    def ratio(self) -> float:
        return self.row.world_size / self.row.baseline_world_size

    @property
    def text(self) -> str:
        share = format_percent(self.row.efficiency, digits=1)
        return f"{self.row.speedup:.2f}x of {self.ratio:g}x, efficiency {share}"


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
        rows = [found[run.run_id][1] for run in part.runs]
        charts.append(
            SpeedupChart(
                key=part.key,
                title=part.title,
                runs=tuple(
                    ScaledRun(name=_with_ranks(*each), row=row) for each, row in zip(part.named, rows, strict=True)
                ),
                basis=tuple(dict.fromkeys(row.basis for row in rows)),
            )
        )
    return tuple(charts)


def _with_ranks(run: TrainingRun, name: str) -> str:
    """A speed-up says nothing without them."""
    ranks = facets(run)["ranks"]
    return name if ranks in name else ", ".join(text for text in (name, ranks) if text)


def chart(data: SpeedupChart) -> Spec:
    """Left: speed-up, a tick at what it can be at most; right: efficiency, lines at 0.8 and 0.9."""
    longest = max(len(run.name) for run in data.runs)
    width, wrap = (COLUMN, NAME_CHARS) if longest <= NAME_CHARS else (PAGE, 2 * NAME_CHARS)
    names = apart([lines(run.name, wrap) for run in data.runs])
    beside = WIDE * max(len(line) for name in names for line in name.split("\n")) + 20
    speedups, shares, ideal, low_high, low_high_shares = [], [], [], [], []
    for run, name in zip(data.runs, names, strict=True):
        row = run.row
        share = row.efficiency / row.speedup
        end = max(row.speedup, row.high or 0.0)
        at = {"run": name, "slower": row.speedup < 1, "said": f"{run.name}: {run.text}"}
        speedups.append({**at, "x": sig(row.speedup), "end": sig(end), "text": f"{row.speedup:.2f}x"})
        percent = format_percent(row.efficiency, digits=1)
        shares.append({**at, "x": sig(row.efficiency), "end": sig(end * share), "text": percent})
        ideal.append({"run": name, "x": sig(run.ratio)})
        if row.low is not None and row.high is not None:
            low_high.append({"run": name, "low": sig(row.low), "high": sig(row.high)})
            low_high_shares.append({"run": name, "low": sig(row.low * share), "high": sig(row.high * share)})
    room = 1.2 if width > COLUMN else 1.5
    down = name_axis("run", names)
    bare = {**down, "axis": None}
    most = max(max(run.ratio, run.row.speedup, run.row.high or 0.0) for run in data.runs) * room
    most_share = max(1.02, *(room * run.row.efficiency for run in data.runs))
    ticks = 5 if width > COLUMN else 3
    left = number_axis("x", "speed-up (x)", low=0.0, top=most, tickCount=ticks)
    right = number_axis("x", "efficiency", low=0.0, top=most_share, tickCount=ticks)
    levels = [{"x": GOOD, "text": f"{GOOD:g}"}, {"x": EXCELLENT, "text": f"{EXCELLENT:g}"}]
    height = max(36, sum(14 if "\n" not in name else 19 for name in names))

    def panel(
        bars: list[dict[str, Any]], color: str, ranged: list[dict[str, Any]], marks: Sequence[Spec]
    ) -> list[Spec]:
        hue = {"condition": {"test": "datum.slower", "value": COLORS[1]}, "value": color}
        bare = [{k: v for k, v in bar.items() if k != "said"} for bar in bars]
        at_end = words(bare, {"x": {"field": "end", "type": "quantitative"}}, align="left", dx=3)
        return [layer("bar", bars, {"color": hue}), *whiskers(ranged, across=True), *marks, *at_end]

    best = layer("tick", ideal, color=INK, thickness=1.2, orient="vertical", size=12)
    above = {"y": {"value": -1}, "text": {"field": "text"}}
    good = (
        layer("rule", levels, {"y": None}, color=FAINT, strokeDash=[4, 2], strokeWidth=0.9),
        layer("text", levels[:1], above, color=FAINT, align="right", dx=-1, baseline="bottom"),
        layer("text", levels[1:], above, color=FAINT, align="left", dx=1, baseline="bottom"),
    )
    size = {"width": max(60, round((width - beside - 24) / 2)), "height": height}
    first = panel(speedups, COLORS[0], low_high, (best,))
    second = panel(shares, COLORS[2], low_high_shares, good)
    return {
        **head(data.title, width),
        "spacing": 12,
        "hconcat": [
            {**size, "encoding": {"x": left, "y": down}, "layer": first},
            {**size, "encoding": {"x": right, "y": bare}, "layer": second},
        ],
    }


def caption(data: SpeedupChart) -> str:
    said = [f"{run.name}: {run.text}" + (f" ({run.row.rating})" if run.row.rating else "") for run in data.runs]
    kinds = {run.row.scaling for run in data.runs}
    rules = {
        "strong": "strong scaling: the same global batch (or data)",
        "weak": "weak scaling: the same batch per rank",
        None: "whether the global batch or each rank's batch was kept is unknown",
    }
    how = "; ".join(rules[kind] for kind in ("strong", "weak", None) if kind in kinds)
    whisker = " Whiskers: 95% interval." if any(run.row.low is not None for run in data.runs) else ""
    return (
        f"Speed-up and efficiency on {data.title}, {counted(len(data.runs), 'run')}:"
        f" {listed(said, at_most=6, between='; ')}. From {', '.join(data.basis)}; {how}."
        f" Black ticks: as much faster as there are more ranks; dashed: efficiency 0.8"
        f" (above: good) and 0.9 (excellent). Orange: slower than the baseline.{whisker}"
    )


VIEW = View(
    key="speedup_efficiency",
    title="Speed-up and efficiency",
    figures=Figures(
        needs=("runs", "scaling"), prepare=prepare, chart=chart, caption=caption, stem="KEY_speedup_efficiency"
    ),
)
