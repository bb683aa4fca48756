"""Duration of every epoch of every run on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stepscope.core.units import format_duration
from stepscope.records.training import TrainingRun
from stepscope.report.view import Figures, View
from stepscope.report.views._curves import RunCurves, curves_chart, epoch_curves
from stepscope.report.views._runs import time_unit
from stepscope.report.views._training import first_epochs
from stepscope.results.figures import dropped_epochs, epoch_time


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[RunCurves, ...]:
    """ns over epochs, of runs that timed at least two."""

    def typical(run: TrainingRun) -> float | None:
        time = epoch_time(run, drop_epochs)
        return None if time is None else time.value

    def axis(largest: float) -> tuple[str, float]:
        scale, unit = time_unit(largest)
        return f"epoch time ({unit})", scale

    return epoch_curves(
        runs,
        lambda e: e.duration_ns,
        y_axis=axis,
        typical=typical,
        dropped=lambda run: dropped_epochs(run, drop_epochs),
    )


def caption(data: RunCurves) -> str:
    medians = "; ".join(f"{c.name}: {format_duration(c.typical)}" for c in data.curves if c.typical is not None)
    grey = f" Grey: {first_epochs(data.dropped)}, left out (--drop-epochs {data.dropped})." if data.dropped else ""
    return f"Time of each epoch on {data.title}, training only. Median over epochs after warm-up: {medians}.{grey}"


VIEW = View(
    key="epoch_time",
    title="Epoch time",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=partial(curves_chart, zero=True),
        caption=caption,
        stem="KEY_epoch_time_detailed",
    ),
)
