"""Duration of every epoch of every run on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration
from stepscope.records.training import TrainingRun
from stepscope.report.charts._common import Chart
from stepscope.report.charts._curves import (
    MAX_CURVES,
    Curve,
    CurvePoint,
    Curves,
    draw_curves,
    size_curves,
    whole_numbers,
)
from stepscope.report.charts._runs import by_dataset, names, time_unit
from stepscope.report.charts._style import from_zero
from stepscope.report.tables._scaling import first_epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[Curves, ...]:
    """ns over epochs, of runs that timed at least two."""
    timed = [run for run in runs if sum(e.duration_ns is not None for e in run.epochs) > 1]
    charts = []
    for part in by_dataset(timed, MAX_CURVES):
        mine = part.runs
        curves = tuple(
            Curve(
                name=name,
                points=tuple(CurvePoint(x=e.number, y=e.duration_ns) for e in run.epochs if e.duration_ns is not None),
            )
            for run, name in zip(mine, names(mine, known=("dataset",)), strict=True)
        )
        scale, unit = time_unit(max(p.y for curve in curves for p in curve.points))
        charts.append(
            Curves(
                key=part.key,
                title=part.title,
                curves=curves,
                x_axis="epoch",
                y_axis=f"epoch time ({unit})",
                scale=scale,
                dropped=drop_epochs if all(len(curve.points) > drop_epochs for curve in curves) else 0,
            )
        )
    return tuple(charts)


def draw(data: Curves, axes: Axes) -> None:
    draw_curves(data, axes)
    top = max(p.y for curve in data.curves for p in curve.points) * data.scale
    from_zero(axes, top * 1.08)
    whole_numbers(axes)


def caption(data: Curves) -> str:
    said = []
    for curve in data.curves:
        kept = [p.y for p in curve.points[data.dropped :]]
        said.append(f"{curve.name}: {format_duration(sum(kept) / len(kept))}")
    grey = (
        f" Grey: {first_epochs(data.dropped)}, left out of means (--drop-epochs {data.dropped})."
        if data.dropped
        else ""
    )
    return (
        f"Time of each epoch on {data.title}, training only. Means over"
        f" {'the epochs that are kept' if data.dropped else 'all epochs'}: {'; '.join(said)}.{grey}"
    )


def stem(data: Curves) -> str:
    """``IMDB_epoch_time_detailed``."""
    return f"{data.key}_epoch_time_detailed"


CHART = Chart(
    key="epoch_time",
    title="Epoch time",
    needs=("runs",),
    wants=("drop_epochs",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_curves,
    stem=stem,
)
