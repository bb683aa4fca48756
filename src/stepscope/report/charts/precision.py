"""Precisions against each other: the same model on the same ranks, with the speed-up over fp32 on each bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.records.training import TrainingRun
from stepscope.report.charts._common import Chart
from stepscope.report.charts._groups import (
    BarGroups,
    Comparison,
    compare,
    draw_groups,
    groups_caption,
    size_groups,
    times,
)
from stepscope.report.charts._runs import facets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAIN = "fp32"


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[BarGroups, ...]:
    """One chart a model and data set: groups of ranks and strategy, a bar for each precision."""
    how = Comparison(
        along="precision",
        value=lambda run: facets(run)["precision"],
        label=times,
        reference=lambda series: PLAIN if PLAIN in series else series[0],
    )
    return compare(runs, how, drop_epochs=drop_epochs)


def draw(data: BarGroups, axes: Axes) -> None:
    draw_groups(data, axes)


def caption(data: BarGroups) -> str:
    return groups_caption(data, "Precisions compared").replace(" (t_a / t_b - 1)", " (speed-up at equal ranks)")


CHART = Chart(
    key="precision",
    title="Precision",
    needs=("runs",),
    wants=("drop_epochs",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_groups,
)
