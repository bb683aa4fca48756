"""What accumulating gradients over more micro-steps before each reduction changes."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.training import TrainingRun
from stepscope.report.views._common import Figures, View
from stepscope.report.views._groups import (
    BarGroups,
    Comparison,
    compare,
    faster,
    groups_caption,
    groups_chart,
)
from stepscope.report.views._runs import facets


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


def caption(data: BarGroups) -> str:
    return (
        f"{groups_caption(data, 'Gradient accumulation')} GA n: gradients are reduced once every n micro-steps,"
        " so an epoch has n times fewer reductions."
    )


VIEW = View(
    key="accumulation",
    title="Gradient accumulation",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=groups_chart,
        caption=caption,
    ),
)
