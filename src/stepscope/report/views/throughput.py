"""Throughput of runs, and how much of the devices' peak they use."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_number, format_percent
from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.report.shared.runs import INTERVAL, by_dataset, failure, on_their_machines, rate_unit
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, Stacks, failed_text, stacks_chart
from stepscope.report.vega import COLORS
from stepscope.report.view import Charts, View
from stepscope.results.epochs import epoch_time, per_second
from stepscope.results.mfu import CONVENTION


def throughput_charts(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[Stacks, ...]:
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


def throughput_caption(data: Stacks) -> str:
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


def mfu_charts(runs: Sequence[TrainingRun]) -> tuple[Stacks, ...]:
    """One chart a data set, where runs differ."""
    charts = []
    for part in by_dataset([run for run in runs if run.mfu is not None and run.status == "ok"], MAX_ROWS):
        known = [run.mfu or 0.0 for run in part.runs]
        if len({format_percent(value) for value in known}) < 2:
            continue
        rows = tuple(
            StackRow(name=name, parts=(value,), text=format_percent(value))
            for (_, name), value in zip(part.named, known, strict=True)
        )
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=("MFU",),
                colors=(COLORS[0],),
                rows=rows,
                axis="MFU: share of the devices' dense peak (%)",
                scale=100.0,
            )
        )
    return tuple(charts)


def mfu_caption(data: Stacks) -> str:
    rows = sorted(data.rows, key=lambda row: -row.parts[0])
    return (
        f"Share of the devices' peak that the model's FLOP use on {data.title}, {counted(len(rows), 'run')}; most: "
        f"{rows[0].name} with {rows[0].text}, least: {rows[-1].name} with {rows[-1].text}. MFU: {CONVENTION}."
    )


VIEWS = (
    View(
        "throughput",
        "Throughput",
        charts=Charts(
            ("runs",),
            throughput_charts,
            stacks_chart,
            throughput_caption,
            wants=("drop_epochs",),
            stem="KEY_throughput",
        ),
    ),
    View("mfu", "Model FLOP utilisation", charts=Charts(("runs",), mfu_charts, stacks_chart, mfu_caption)),
)
