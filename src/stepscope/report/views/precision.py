"""Precisions against each other: the same model on the same ranks, with the speed-up over fp32 on each bar."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.training import TrainingRun
from stepscope.report.views._common import Figures, View
from stepscope.report.views._groups import (
    BarGroups,
    Comparison,
    compare,
    groups_caption,
    groups_chart,
    times,
)
from stepscope.report.views._runs import facets

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


def caption(data: BarGroups) -> str:
    return groups_caption(data, "Precisions compared").replace(" (t_a / t_b - 1)", " (speed-up at equal ranks)")


VIEW = View(
    key="precision",
    title="Precision",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=groups_chart,
        caption=caption,
    ),
)
