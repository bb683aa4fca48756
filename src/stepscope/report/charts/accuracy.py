"""Validation accuracy over epochs: whether the fast run still learns as much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.charts._common import Chart
from stepscope.report.charts._curves import (
    MAX_CURVES,
    Curve,
    CurvePoint,
    Curves,
    draw_curves,
    plain_values,
    size_curves,
    whole_numbers,
)
from stepscope.report.charts._runs import by_dataset, names

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(runs: Sequence[TrainingRun]) -> tuple[Curves, ...]:
    """Share of right answers over epochs, of runs that validated at least two."""
    known = [run for run in runs if sum(e.validation_accuracy is not None for e in run.epochs) > 1]
    charts = []
    for part in by_dataset(known, MAX_CURVES):
        mine = part.runs
        charts.append(
            Curves(
                key=part.key,
                title=part.title,
                curves=tuple(
                    Curve(
                        name=name,
                        points=tuple(
                            CurvePoint(x=e.number, y=e.validation_accuracy)
                            for e in run.epochs
                            if e.validation_accuracy is not None
                        ),
                    )
                    for run, name in zip(mine, names(mine, known=("dataset",)), strict=True)
                ),
                x_axis="epoch",
                y_axis="validation accuracy (%)",
                scale=100.0,
            )
        )
    return tuple(charts)


def draw(data: Curves, axes: Axes) -> None:
    draw_curves(data, axes, over=True)
    whole_numbers(axes)
    plain_values(axes)


def caption(data: Curves) -> str:
    said = []
    for curve in data.curves:
        best = max(curve.points, key=lambda p: p.y)
        said.append(f"{curve.name}: best {format_percent(best.y, digits=1)} in epoch {best.x:g}")
    return (
        f"Validation accuracy over epochs on {data.title}, {counted(len(data.curves), 'run')}. {'; '.join(said)}."
        " Lines that lie on each other are drawn thinner upwards."
    )


def stem(data: Curves) -> str:
    """``IMDB_accuracy``."""
    return f"{data.key}_accuracy"


CHART = Chart(
    key="accuracy",
    title="Validation accuracy",
    needs=("runs",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_curves,
    stem=stem,
)
