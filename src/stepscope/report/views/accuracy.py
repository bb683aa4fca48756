"""Validation accuracy over epochs: whether the fast run still learns as much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.view import Figures, View
from stepscope.report.views._curves import RunCurves, curves_chart, epoch_curves


def prepare(runs: Sequence[TrainingRun]) -> tuple[RunCurves, ...]:
    """Share of right answers over epochs, of runs that validated at least two."""
    return epoch_curves(runs, lambda e: e.validation_accuracy, y_axis=lambda _: ("validation accuracy (%)", 100.0))


def caption(data: RunCurves) -> str:
    said = []
    for curve in data.curves:
        best = max(curve.points, key=lambda p: p.y)
        said.append(f"{curve.name}: best {format_percent(best.y, digits=1)} in epoch {best.x:g}")
    return (
        f"Validation accuracy over epochs on {data.title}, {counted(len(data.curves), 'run')}. {'; '.join(said)}."
        " Runs that look the same are one line."
    )


VIEW = View(
    key="accuracy",
    title="Validation accuracy",
    figures=Figures(
        needs=("runs",), prepare=prepare, chart=partial(curves_chart, over=True), caption=caption, stem="KEY_accuracy"
    ),
)
