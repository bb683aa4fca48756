"""What accumulating gradients over more micro-steps before each reduction changes."""

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


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[BarGroups, ...]:
    """One chart a model and data set: groups of strategy and ranks, a bar for each number of micro-steps.

    Steps of more micro-steps hold more samples, so a step's time is not compared: an epoch's, or the throughput.
    """
    how = Comparison(
        along="accumulation",
        value=lambda run: facets(run)["accumulation"],
        label=faster,
        ignore=("batch",),
        steps_alike=False,
        order=lambda name: (float(name.removeprefix("GA ")), name),
    )
    return compare(runs, how, drop_epochs=drop_epochs)


def draw(data: BarGroups, axes: Axes) -> None:
    draw_groups(data, axes)


def caption(data: BarGroups) -> str:
    return (
        f"{groups_caption(data, 'Gradient accumulation')} GA n: gradients are reduced once every n micro-steps,"
        " so an epoch has n times fewer reductions."
    )


CHART = Chart(
    key="accumulation",
    title="Gradient accumulation",
    needs=("runs",),
    wants=("drop_epochs",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_groups,
)
