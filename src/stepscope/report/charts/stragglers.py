"""Which rank takes longer than the others before it communicates, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.report.charts._common import Chart
from stepscope.report.charts._runs import time_unit
from stepscope.report.charts._style import COLUMN_INCHES, title_above, title_inches
from stepscope.report.charts._text import clean, file_part
from stepscope.results.evidence import CellEvidence
from stepscope.results.slow_ranks import OwnTimes, own_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
            found.append((max(_medians(times)), cell, times))
    found.sort(key=lambda each: -each[0])
    return tuple(_chart(cell, times) for _, cell, times in found[:MAX_CELLS])


def _medians(times: OwnTimes) -> tuple[float, ...]:
    """Median excess of each rank over the others' own time."""
    import numpy as np

    return tuple(float(m) / times.typical_ns for m in np.median(times.excess_ns, axis=1))


def _chart(cell: CellEvidence, times: OwnTimes) -> StragglerChart:
    import numpy as np

    width = -(-times.steps // MAX_STEPS)
    starts = range(0, times.steps, width)
    return StragglerChart(
        key=file_part(cell.run.run_id),
        title=clean(f"{cell.run.model or cell.run.group}, {cell.run.label}", 80),
        excess=tuple(tuple(float(np.median(rank[at : at + width])) for at in starts) for rank in times.excess_ns),
        medians=_medians(times),
        median_own_ns=times.typical_ns,
        hosts=tuple(clean(host, 16) for host in times.hosts),
        steps=times.steps,
        width=width,
    )


def draw(data: StragglerChart, axes: Axes) -> None:
    import numpy as np
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    values = np.array(data.excess)
    scale, unit = time_unit(float(np.abs(values).max()))
    reach = float(np.quantile(np.abs(values), 0.98)) * scale or 1.0
    image = axes.imshow(
        values * scale,
        cmap="PuOr_r",
        norm=TwoSlopeNorm(0.0, -reach, reach),
        aspect="auto",
        interpolation="nearest",
        extent=(0, data.steps, len(values) - 0.5, -0.5),
    )
    axes.grid(visible=False)
    ranks = len(values)
    every = max(1, -(-ranks // 16))
    shown = range(0, ranks, every)
    axes.set_yticks(shown, [f"{rank}  {_percent(data.medians[rank])}" for rank in shown])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.tick_params(length=0)
    axes.set_xlabel("step after warm-up")
    axes.set_ylabel("rank, median excess (%)")
    title_above(axes, data.title, COLUMN_INCHES)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02, extend="both")
    bar.set_label(f"longer than the others ({unit})")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:+.3g}" if y else "0"))
    bar.outline.set_visible(False)


def _percent(share: float) -> str:
    return f"{share:+.0%}" if abs(share) >= 0.0095 else f"{share:+.1%}"


def caption(data: StragglerChart) -> str:
    worst = max(range(len(data.medians)), key=lambda rank: data.medians[rank])
    where = f" on {data.hosts[worst]}" if len(data.hosts) == len(data.medians) else ""
    columns = f" Each column: median of {data.width} steps." if data.width > 1 else ""
    return (
        f"Own time of each rank (a step without its exposed communication) minus the median of the other ranks' in the"
        f" same step, {data.title}, {counted(data.steps, 'step')}. Rank {worst}{where} takes"
        f" {_percent(data.medians[worst]).replace('%', ' %')} in the median, of {format_duration(data.median_own_ns)}."
        f" Orange: longer, purple: shorter.{columns}"
    )


def size_inches(data: StragglerChart) -> tuple[float, float]:
    return COLUMN_INCHES, min(4.2, 1.1 + 0.24 * max(4, len(data.excess))) + title_inches(data.title, COLUMN_INCHES)


CHART = Chart(
    key="stragglers",
    title="Own time of ranks",
    needs=("cells",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
)
