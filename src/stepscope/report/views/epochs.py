"""Epochs of runs: a table of all, charts of their time, of validation accuracy and of training loss.

Throughput of runs, and how much of the devices' peak they use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_number, format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.nouns import MFU_CONVENTION, Measured
from stepscope.records.training import TrainingRun
from stepscope.report.names import file_part
from stepscope.report.shared.curves import CurvePoint, RunCurve, RunCurves, curves_chart, epoch_curves
from stepscope.report.shared.runs import (
    INTERVAL,
    by_dataset,
    facets,
    failure,
    first_epochs,
    names,
    numbered_parts,
    on_their_machines,
    rate_column,
    rate_unit,
    time_unit,
)
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, Stacks, failed_text, sorted_rows, stacks_chart, stacks_of
from stepscope.report.table import Column, Format, Table, duration, tabled, whole
from stepscope.report.vega import MAX_LINES, drawable
from stepscope.report.views import View, distinct, drawn
from stepscope.results.epochs import dropped_epochs, epoch_time, per_second
from stepscope.results.evidence import CellEvidence
from stepscope.stats.step_table import common_steps


def epochs_table(runs: Sequence[TrainingRun]) -> Table:
    """Return the table: one row an epoch."""

    def of_epoch(field: str) -> Callable[[Any], Any]:
        return lambda item: getattr(item[1], field)

    decimals = Format(lambda value: f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}")
    return tabled(
        "epochs",
        "Epochs",
        ((run, epoch) for run in runs for epoch in run.epochs),
        Column("run", "run", lambda item: item[0].label, role="lead"),
        Column("world_size", "ranks", lambda item: item[0].world_size, whole, role="identity"),
        Column("epoch", "epoch", of_epoch("number"), whole, role="identity"),
        Column("duration_ns", "time", of_epoch("duration_ns"), duration),
        Column("train_loss", "loss", of_epoch("train_loss"), decimals),
        Column("train_accuracy", "train accuracy", of_epoch("train_accuracy"), decimals),
        Column("validation_loss", "validation loss", of_epoch("validation_loss"), decimals),
        Column("validation_accuracy", "validation accuracy", of_epoch("validation_accuracy"), decimals),
        rate_column(runs, of_epoch("samples_per_s"), of=lambda item: item[0]),
        Column("samples_seen", "samples", of_epoch("samples_seen"), whole),
        footnotes=("time: training only, slowest rank. samples: trained on by all ranks together.",),
    )


def epoch_time_charts(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[RunCurves, ...]:
    """Return charts of ns over epochs, of runs that timed at least two."""

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


def epoch_time_caption(data: RunCurves) -> str:
    medians = "; ".join(f"{c.name}: {format_duration(c.typical)}" for c in data.curves if c.typical is not None)
    grey = f" Grey: {first_epochs(data.dropped)}, left out (--drop-epochs {data.dropped})." if data.dropped else ""
    return f"Time of each epoch on {data.title}, training only. Median over epochs after warm-up: {medians}.{grey}"


def accuracy_charts(runs: Sequence[TrainingRun]) -> tuple[RunCurves, ...]:
    """Return charts of the share of right answers over epochs, of runs that validated at least two."""
    return epoch_curves(runs, lambda e: e.validation_accuracy, y_axis=lambda _: ("validation accuracy (%)", 100.0))


def accuracy_caption(data: RunCurves) -> str:
    bests = []
    for curve in data.curves:
        best = max(curve.points, key=lambda p: p.y)
        bests.append(f"{curve.name}: best {format_percent(best.y, digits=1)} in epoch {best.x:g}")
    return (
        f"Validation accuracy over epochs on {data.title}, {counted(len(data.curves), 'run')}. {'; '.join(bests)}."
        " Runs that look the same are one line."
    )


MAX_POINTS = 100
"""Steps of one line; more are drawn as means of neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChart(RunCurves):
    """Losses of one chart.

    difference: largest relative difference to the first line at the same epoch or step; where: at which.
    """

    difference: float
    where: float


def loss_charts(runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()) -> tuple[LossChart, ...]:
    """Return one chart for all runs alike but for strategy and ranks: over epochs where they have two, else steps."""
    by_cell = {cell.run.run_id: cell for cell in cells}
    done = [run for run in runs if run.status == "ok"]
    charts: list[LossChart] = []
    for about, alike in _alike(done):
        for number, several, part in numbered_parts(_lines(alike, by_cell), MAX_LINES):
            if len(part) < 2:
                continue
            title = ", ".join(text for text in (f"{about[2]} on {about[1]}", *about[3:]) if text)
            key = file_part("-".join(t for t in (*about[1:], str(number) if several else "") if t))
            difference, where = _difference([points for _, points, _ in part])
            axis = part[0][2]
            charts.append(
                LossChart(
                    key=key,
                    title=title + several,
                    curves=tuple(
                        RunCurve(name=name, points=points)
                        for name, (_, points, _) in zip(
                            names([run for run, _, _ in part], in_title=ALIKE), part, strict=True
                        )
                    ),
                    x_axis=axis,
                    y_axis="training loss of a sample",
                    difference=difference,
                    where=where,
                )
            )
    return distinct(charts)


ALIKE = ("hardware", "dataset", "model", "precision", "accumulation", "batch")


def _alike(runs: Sequence[TrainingRun]) -> list[tuple[tuple[str, ...], list[TrainingRun]]]:
    """Group the runs that should learn the same, with what they share; where a batch is unknown, it tells nobody apart."""
    groups: list[tuple[tuple[str, ...], list[TrainingRun]]] = []
    for about, alike in grouped(runs, lambda run: tuple(facets(run)[f] for f in ALIKE[:-1])).items():
        if all(facets(run)["batch"] for run in alike):
            groups += [((*about, b), of) for b, of in grouped(alike, lambda run: facets(run)["batch"]).items()]
        else:
            groups.append(((*about, ""), alike))
    return groups


Line = tuple[TrainingRun, tuple[CurvePoint, ...], str]


def _lines(runs: Sequence[TrainingRun], cells: dict[str, CellEvidence]) -> list[Line]:
    """Runs with their losses and what they are over; of both kinds that of which there is more."""
    epochs: list[Line] = []
    steps: list[Line] = []
    for run in runs:
        losses = tuple(CurvePoint(x=e.number, y=e.train_loss) for e in run.epochs if drawable(e.train_loss))
        if len(losses) > 1:
            epochs.append((run, losses, "epoch"))
        elif run.run_id in cells and len(walked := _step_losses(cells[run.run_id])) > 1:
            steps.append((run, walked, "step"))
    width = -(-max((len(walked) for _, walked, _ in steps), default=1) // MAX_POINTS)
    steps = [(run, _means(walked, width), axis) for run, walked, axis in steps]
    return max(epochs, steps, key=len)


def _step_losses(cell: CellEvidence) -> tuple[CurvePoint, ...]:
    """Return the mean loss of a sample over all ranks in every step of the first round, warm-up included."""
    steps = common_steps(cell.result.samples, cell.result.spec.world_size).by_key
    first = min((number for number, _ in steps), default=0)
    losses: list[CurvePoint] = []
    for (number, step), ranks in steps.items():
        sums = [sample.loss_sum for sample in ranks]
        finite = [value for value in sums if drawable(value)]
        if number == first and ranks[0].global_samples and len(finite) == len(sums):
            losses.append(CurvePoint(x=step, y=sum(finite) / ranks[0].global_samples))
    return tuple(losses)


def _means(points: Sequence[CurvePoint], width: int) -> tuple[CurvePoint, ...]:
    """Return the means of ``width`` neighbours; all lines of a chart have one width, so that they can be compared."""
    windows = [points[at : at + width] for at in range(0, len(points), width)]
    return tuple(CurvePoint(x=sum(p.x for p in w) / len(w), y=sum(p.y for p in w) / len(w)) for w in windows)


def _difference(lines: Sequence[tuple[CurvePoint, ...]]) -> tuple[float, float]:
    """Return the largest relative difference to the first line where both have a point, and where; (0, 0) without any."""
    first = {p.x: p.y for p in lines[0]}
    differences = [(abs(p.y / first[p.x] - 1), p.x) for line in lines[1:] for p in line if first.get(p.x)]
    return max(differences, default=(0.0, 0.0))


def loss_caption(data: LossChart) -> str:
    over = data.x_axis
    apart = format_percent(data.difference) if data.difference >= 0.0095 else f"{data.difference:.2g}"
    last = "; ".join(f"{c.name}: {c.points[-1].y:.4g}" for c in data.curves)
    first = data.curves[0].name
    compared = (
        f"The lines differ by {apart} at most (relative to {first}, {over} {data.where:g})."
        if data.difference
        else "The lines are the same."
    )
    return (
        f"Training loss over {over}s of {data.title}, {counted(len(data.curves), 'run')}. {compared} At the end:"
        f" {last}. Runs that look the same are one line."
    )


def throughput_charts(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[Stacks, ...]:
    """Return charts of samples/s over all ranks; epochs per hour where nobody says how many samples an epoch has."""
    charts = []
    for part in by_dataset(on_their_machines(runs), MAX_ROWS):
        rates = [_rate(run, drop_epochs) for run in part.runs]
        passes = [_passes(run, drop_epochs) for run in part.runs]
        measured_rates = [rate for rate in rates if rate is not None]
        if measured_rates:
            unit, scale = rate_unit(max(rate.value for rate in measured_rates), part.runs[0].unit)
        else:
            unit, scale, rates = "epochs/h", 3600.0, passes
        rows = tuple(
            _row(run, name, rate, scale)
            for (run, name), rate in zip(part.named, rates, strict=True)
            if rate is not None or run.status != "ok"
        )
        if sum(row.failure is None for row in rows) < 2:
            continue
        charts.append(stacks_of(part, rows, f"throughput ({unit})", scale, kinds=("throughput",)))
    return tuple(charts)


def _row(run: TrainingRun, name: str, rate: Measured | None, scale: float) -> StackRow:
    if rate is None:
        return StackRow(name=name, failure=failure(run))
    return StackRow(
        name=name, parts=(rate.value,), low=rate.low, high=rate.high, text=format_number(rate.value * scale, 3)
    )


def _rate(run: TrainingRun, drop_epochs: int) -> Measured | None:
    """Return samples/s as measured, else from whole epochs of known size."""
    if run.status != "ok" or run.samples_per_s is not None:
        return run.samples_per_s if run.status == "ok" else None
    return None if run.dataset_size is None else _passes(run, drop_epochs, run.dataset_size)


def _passes(run: TrainingRun, drop_epochs: int, samples: int = 1) -> Measured | None:
    """Return epochs per second, or their samples."""
    time = epoch_time(run, drop_epochs) if run.status == "ok" else None
    return None if time is None or time.value <= 0 else per_second(time, samples)


def throughput_caption(data: Stacks) -> str:
    done = sorted_rows(data)
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
    """Return one chart a data set, where runs differ."""
    charts = []
    for part in by_dataset([run for run in runs if run.mfu is not None and run.status == "ok"], MAX_ROWS):
        shares = [run.mfu or 0.0 for run in part.runs]
        if len({format_percent(value) for value in shares}) < 2:
            continue
        named = zip(part.named, shares, strict=True)
        rows = (StackRow(name=name, parts=(value,), text=format_percent(value)) for (_, name), value in named)
        charts.append(stacks_of(part, rows, "MFU: share of the devices' dense peak (%)", 100.0, kinds=("MFU",)))
    return tuple(charts)


def mfu_caption(data: Stacks) -> str:
    rows = sorted_rows(data)
    return (
        f"Share of the devices' peak that the model's FLOP use on {data.title}, {counted(len(rows), 'run')}; most: "
        f"{rows[0].name} with {rows[0].text}, least: {rows[-1].name} with {rows[-1].text}. MFU: {MFU_CONVENTION}."
    )


VIEWS = (
    View("epochs", "Epochs", needs=("runs",), table=epochs_table),
    drawn(
        "epoch_time",
        "Epoch time",
        ("runs",),
        epoch_time_charts,
        partial(curves_chart, zero=True),
        epoch_time_caption,
        wants=("drop_epochs",),
        stem="KEY_epoch_time_detailed",
    ),
    drawn(
        "accuracy",
        "Validation accuracy",
        ("runs",),
        accuracy_charts,
        partial(curves_chart, over=True),
        accuracy_caption,
        stem="KEY_accuracy",
    ),
    drawn(
        "loss",
        "Training loss",
        ("runs",),
        loss_charts,
        partial(curves_chart, over=True),
        loss_caption,
        wants=("cells",),
    ),
    drawn(
        "throughput",
        "Throughput",
        ("runs",),
        throughput_charts,
        stacks_chart,
        throughput_caption,
        wants=("drop_epochs",),
        stem="KEY_throughput",
    ),
    drawn("mfu", "Model FLOP utilisation", ("runs",), mfu_charts, stacks_chart, mfu_caption),
)
