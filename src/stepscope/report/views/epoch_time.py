"""Duration of every epoch of every run on a data set."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.training import TrainingRun
from stepscope.report.vega import MAX_LINES, Spec, known
from stepscope.report.views._common import Figures, View
from stepscope.report.views._curves import Curve, CurvePoint, Curves, curves_chart
from stepscope.report.views._runs import by_dataset, names, time_unit
from stepscope.report.views._training import first_epochs


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[Curves, ...]:
    """ns over epochs, of runs that timed at least two."""
    timed = [run for run in runs if sum(known(e.duration_ns) for e in run.epochs) > 1]
    charts = []
    for part in by_dataset(timed, MAX_LINES):
        mine = part.runs
        curves = tuple(
            Curve(
                name=name,
                points=tuple(CurvePoint(x=e.number, y=e.duration_ns) for e in run.epochs if known(e.duration_ns)),
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


def chart(data: Curves) -> Spec:
    return curves_chart(data, zero=True)


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


VIEW = View(
    key="epoch_time",
    title="Epoch time",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=chart,
        caption=caption,
        stem=stem,
    ),
)
