"""Throughput of all runs on a data set."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_number
from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.report.vega import COLORS
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import INTERVAL, by_dataset, failure, on_their_machines, rate_unit
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, failed_text, stacks_chart
from stepscope.results.figures import epoch_time, per_second


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[Stacks, ...]:
    """samples/s over all ranks; epochs per hour where nobody says how many samples an epoch has."""
    charts = []
    for part in by_dataset(on_their_machines(runs), MAX_ROWS):
        rates = [_rate(run, drop_epochs) for run in part.runs]
        passes = [_passes(run, drop_epochs) for run in part.runs]
        known = [rate for rate in rates if rate is not None]
        if known:
            unit, scale = rate_unit(max(rate.value for rate in known), part.runs[0].unit)
        else:
            unit, scale, rates = "epochs/h", 3600.0, passes
        rows = tuple(
            _row(run, name, rate, scale)
            for (run, name), rate in zip(part.named, rates, strict=True)
            if rate is not None or run.status != "ok"
        )
        if sum(row.failure is None for row in rows) < 2:
            continue
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=("throughput",),
                colors=(COLORS[0],),
                rows=rows,
                axis=f"throughput ({unit})",
                scale=scale,
            )
        )
    return tuple(charts)


def _row(run: TrainingRun, name: str, rate: Measured | None, scale: float) -> StackRow:
    if rate is None:
        return StackRow(name=name, failure=failure(run))
    return StackRow(
        name=name, parts=(rate.value,), low=rate.low, high=rate.high, text=format_number(rate.value * scale, 3)
    )


def _rate(run: TrainingRun, drop_epochs: int) -> Measured | None:
    """samples/s as measured, else from whole epochs of known size."""
    if run.status != "ok" or run.samples_per_s is not None:
        return run.samples_per_s if run.status == "ok" else None
    return None if run.dataset_size is None else _passes(run, drop_epochs, run.dataset_size)


def _passes(run: TrainingRun, drop_epochs: int, samples: int = 1) -> Measured | None:
    """Epochs per second, or their samples."""
    time = epoch_time(run, drop_epochs) if run.status == "ok" else None
    return None if time is None or time.value <= 0 else per_second(time, samples)


def caption(data: Stacks) -> str:
    done = sorted((row for row in data.rows if row.failure is None), key=lambda row: -sum(row.parts))
    best, worst = done[0], done[-1]
    unit = data.axis.partition("(")[2].rstrip(")")
    text = (
        f"Throughput over all ranks on {data.title}, {counted(len(data.rows), 'run')}; most: {best.name} with"
        f" {best.text} {unit}, least: {worst.name} with {worst.text}."
    )
    if any(row.low is not None for row in done):
        text += f" Whiskers: {INTERVAL.removesuffix(' of the median')}."
    if unit.startswith("epochs"):
        text += " An epoch is what each run calls one; its number of samples is unknown."
    return text + failed_text(data.rows)


VIEW = View(
    key="throughput",
    title="Throughput",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=stacks_chart,
        caption=caption,
        stem="KEY_throughput",
    ),
)
