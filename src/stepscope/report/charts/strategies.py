"""Strategies against each other on the same model and ranks: how much faster each is than naive synchronisation."""

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
    faster,
    groups_caption,
    size_groups,
)
from stepscope.report.charts._runs import facets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAIVE = "naive"


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[BarGroups, ...]:
    """One chart a model and data set: groups of ranks and precision, a bar for each strategy."""
    how = Comparison(
        along="strategy",
        value=lambda run: facets(run)["strategy"],
        label=faster,
        reference=lambda series: next((name for name in series if NAIVE in name.casefold()), series[0]),
    )
    return compare(runs, how, drop_epochs=drop_epochs)


def draw(data: BarGroups, axes: Axes) -> None:
    draw_groups(data, axes)


def caption(data: BarGroups) -> str:
    return groups_caption(data, "Strategies compared")


CHART = Chart(
    key="strategies",
    title="Strategies",
    needs=("runs",),
    wants=("drop_epochs",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_groups,
)
