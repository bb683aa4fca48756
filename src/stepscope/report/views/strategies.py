"""Strategies against each other on the same model and ranks: how much faster each is than naive synchronisation."""

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


def caption(data: BarGroups) -> str:
    return groups_caption(data, "Strategies compared")


VIEW = View(
    key="strategies",
    title="Strategies",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=groups_chart,
        caption=caption,
    ),
)
