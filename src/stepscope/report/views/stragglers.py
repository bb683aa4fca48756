"""Which rank takes longer than the others before it communicates, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.report.names import clean, file_part
from stepscope.report.vega import COLUMN, Spec, layer, name_axis, number_axis, sig
from stepscope.report.vega import chart as chart_
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import time_unit
from stepscope.results.evidence import CellEvidence
from stepscope.results.slow_ranks import OwnTimes, own_times

MIN_STEPS = 10
MAX_STEPS = 120
"""Columns of the map; more steps are drawn as medians of neighbours."""

MAX_CELLS = 4
"""Charts are drawn for the cells in which some rank stands out most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerChart:
    """excess: [rank][column], own time - median of the other ranks' own times in the same step, ns. medians: each rank's
    over all steps, as a share of the others' own time. width: steps in a column.
    """

    key: str
    title: str
    excess: tuple[tuple[float, ...], ...]
    medians: tuple[float, ...]
    median_own_ns: float
    hosts: tuple[str, ...]
    steps: int
    width: int


def prepare(cells: Sequence[CellEvidence]) -> tuple[StragglerChart, ...]:
    """The cells in which some rank stands out most, by own time: a step without its exposed communication."""
    found = []
    for cell in cells:
        times = own_times(cell.result) if cell.run.status == "ok" else None
        if times is not None and times.steps >= MIN_STEPS and times.typical_ns > 0:
            found.append((times.largest_excess_fraction, cell, times))
    found.sort(key=lambda each: -each[0])
    return tuple(_chart(cell, times) for _, cell, times in found[:MAX_CELLS])


def _chart(cell: CellEvidence, times: OwnTimes) -> StragglerChart:
    import numpy as np

    width = -(-times.steps // MAX_STEPS)
    starts = range(0, times.steps, width)
    return StragglerChart(
        key=file_part(cell.run.run_id),
        title=clean(f"{cell.run.model or cell.run.group}, {cell.run.label}", 80),
        excess=tuple(tuple(float(np.median(rank[at : at + width])) for at in starts) for rank in times.excess_ns),
        medians=times.excess_fractions,
        median_own_ns=times.typical_ns,
        hosts=tuple(clean(host, 16) for host in times.hosts),
        steps=times.steps,
        width=width,
    )


def chart(data: StragglerChart) -> Spec:
    """A row for each rank, a column for each stretch of steps; colours from shorter (purple) to longer (orange)."""
    scale, unit = time_unit(max(abs(value) for rank in data.excess for value in rank))
    sizes = sorted(abs(value) * scale for rank in data.excess for value in rank)
    reach = sig(sizes[min(len(sizes) - 1, int(0.98 * len(sizes)))] or 1.0)
    called = [f"{rank}  {format_percent(share, signed=True)}" for rank, share in enumerate(data.medians)]
    cells = [
        {
            "rank": called[rank],
            "from": at * data.width,
            "to": min(data.steps, (at + 1) * data.width),
            "value": sig(value * scale),
        }
        for rank, values in enumerate(data.excess)
        for at, value in enumerate(values)
    ]
    hue = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "purpleorange", "domain": [-reach, reach], "domainMid": 0, "clamp": True},
        "legend": {
            "title": f"longer than the others ({unit})",
            "orient": "bottom",
            "gradientLength": 140,
            "gradientThickness": 6,
            "tickCount": 4,
            "format": "+~r",
        },
    }
    span = {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}, "color": hue}
    x = number_axis("from", "step after warm-up", low=0.0, top=data.steps, grid=False)
    every = max(1, -(-len(called) // 16))
    y = name_axis("rank", called, "rank, median excess (%)", values=called[::every])
    y["scale"] = {"domain": called, "padding": 0}
    height = min(220, 17 * max(6, len(called)))
    return chart_(data.title, [layer("rect", cells, span)], width=COLUMN, height=height, x=x, y=y)


def caption(data: StragglerChart) -> str:
    worst = max(range(len(data.medians)), key=lambda rank: data.medians[rank])
    where = f" on {data.hosts[worst]}" if len(data.hosts) == len(data.medians) else ""
    columns = f" Each column: median of {data.width} steps." if data.width > 1 else ""
    return (
        f"Own time of each rank (a step without its exposed communication) minus the median of the other ranks' in the"
        f" same step, {data.title}, {counted(data.steps, 'step')}. Rank {worst}{where} takes"
        f" {format_percent(data.medians[worst], signed=True)} in the median, of {format_duration(data.median_own_ns)}."
        f" Orange: longer, purple: shorter.{columns}"
    )


VIEW = View(
    key="stragglers",
    title="Own time of ranks",
    figures=Figures(needs=("cells",), prepare=prepare, chart=chart, caption=caption),
)
