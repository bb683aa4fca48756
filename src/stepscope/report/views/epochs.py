"""Epochs of runs: a table of all, charts of their time, of validation accuracy and of training loss.

Throughput of runs, and how much of the devices' peak they use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepscope.core.units import format_duration, format_number, format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.nouns import MFU_CONVENTION, Measured
from stepscope.records.training import TrainingRun
from stepscope.report.names import file_part
from stepscope.report.shared.curves import CurvePoint, RunCurve, curves_chart, epoch_curves, highest
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
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, by_length, failed_text, stacks_chart
from stepscope.report.table import Column, Format, Table, duration, identity_column, lead_column, tabled, whole
from stepscope.report.vega import MAX_LINES, Chart, drawable
from stepscope.report.views import View
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
        lead_column("run", "run", "0.label"),
        identity_column("world_size", "ranks", "0.world_size", whole),
        identity_column("epoch", "epoch", of_epoch("number"), whole),
        Column("duration_ns", "time", of_epoch("duration_ns"), duration),
        Column("train_loss", "loss", of_epoch("train_loss"), decimals),
        Column("train_accuracy", "train accuracy", of_epoch("train_accuracy"), decimals),
        Column("validation_loss", "validation loss", of_epoch("validation_loss"), decimals),
        Column("validation_accuracy", "validation accuracy", of_epoch("validation_accuracy"), decimals),
        rate_column(runs, of_epoch("samples_per_s"), run_of=lambda item: item[0]),
        Column("samples_seen", "samples", of_epoch("samples_seen"), whole),
        footnotes=("time: training only, slowest rank. samples: trained on by all ranks together.",),
    )


def epoch_time_charts(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> Iterator[Chart]:
    """Yield charts of ns over epochs, of runs that timed at least two."""
    for part, curves in epoch_curves(runs, lambda e: e.duration_ns):
        scale, unit = time_unit(highest(curves))
        left_out = {dropped_epochs(run, drop_epochs) for run in part.runs}
        dropped = left_out.pop() if len(left_out) == 1 else 0
        times = ((name, epoch_time(run, drop_epochs)) for run, name in part.named)
        medians = "; ".join(f"{name}: {format_duration(time.value)}" for name, time in times if time is not None)
        grey = f" Grey: {first_epochs(dropped)}, left out (--drop-epochs {dropped})." if dropped else ""
        caption = (
            f"Time of each epoch on {part.title}, training only. Median over epochs after warm-up: {medians}.{grey}"
        )
        axis = f"epoch time ({unit})"
        spec = curves_chart(part.title, curves, "epoch", axis, scale, zero=True, dropped=dropped)
        yield Chart(part.key, part.title, caption, spec)


def accuracy_charts(runs: Sequence[TrainingRun]) -> Iterator[Chart]:
    """Yield charts of the share of right answers over epochs, of runs that validated at least two."""
    for part, curves in epoch_curves(runs, lambda e: e.validation_accuracy):
        bests = ((curve.name, max(curve.points, key=lambda p: p.y)) for curve in curves)
        texts = "; ".join(f"{name}: best {format_percent(p.y, digits=1)} in epoch {p.x:g}" for name, p in bests)
        caption = (
            f"Validation accuracy over epochs on {part.title}, {counted(len(curves), 'run')}. {texts}."
            " Runs that look the same are one line."
        )
        spec = curves_chart(part.title, curves, "epoch", "validation accuracy (%)", 100.0, over=True)
        yield Chart(part.key, part.title, caption, spec)


MAX_POINTS = 100
"""Steps of one line; more are drawn as means of neighbours."""


def loss_charts(runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()) -> Iterator[Chart]:
    """Yield one chart for all runs alike but for strategy and ranks: over epochs where they have two, else steps."""
    by_cell = {cell.run.run_id: cell for cell in cells}
    for about, alike in _groups_alike([run for run in runs if run.status == "ok"]):
        for number, several, part in numbered_parts(_loss_lines(alike, by_cell), MAX_LINES):
            if len(part) < 2:
                continue
            title = ", ".join(text for text in (f"{about[2]} on {about[1]}", *about[3:]) if text) + several
            called = names([run for run, _, _ in part], in_title=ALIKE)
            curves = [RunCurve(name, points) for name, (_, points, _) in zip(called, part, strict=True)]
            over = part[0][2]
            caption = (
                f"Training loss over {over}s of {title}, {counted(len(curves), 'run')}. {_apart_text(curves, over)} At the"
                f" end: {'; '.join(f'{c.name}: {c.points[-1].y:.4g}' for c in curves)}. Runs that look the same are one"
                " line."
            )
            key = file_part("-".join(t for t in (*about[1:], str(number) if several else "") if t))
            yield Chart(key, title, caption, curves_chart(title, curves, over, "training loss of a sample", over=True))


ALIKE = ("hardware", "dataset", "model", "precision", "accumulation", "batch")


def _groups_alike(runs: Sequence[TrainingRun]) -> list[tuple[tuple[str, ...], list[TrainingRun]]]:
    """Group the runs that should learn the same, with what they share; where a batch is unknown, it tells nobody apart."""
    groups: list[tuple[tuple[str, ...], list[TrainingRun]]] = []
    for about, alike in grouped(runs, lambda run: tuple(facets(run)[f] for f in ALIKE[:-1])).items():
        if all(facets(run)["batch"] for run in alike):
            groups += [((*about, b), of) for b, of in grouped(alike, lambda run: facets(run)["batch"]).items()]
        else:
            groups.append(((*about, ""), alike))
    return groups


Line = tuple[TrainingRun, tuple[CurvePoint, ...], str]


def _loss_lines(runs: Sequence[TrainingRun], cells: dict[str, CellEvidence]) -> list[Line]:
    """Runs with their losses and what they are over; of both kinds that of which there is more."""
    epochs: list[Line] = []
    steps: list[Line] = []
    for run in runs:
        losses = tuple(CurvePoint(e.number, e.train_loss) for e in run.epochs if drawable(e.train_loss))
        if len(losses) > 1:
            epochs.append((run, losses, "epoch"))
        elif run.run_id in cells and len(walked := _step_losses(cells[run.run_id])) > 1:
            steps.append((run, walked, "step"))
    width = -(-max((len(walked) for _, walked, _ in steps), default=1) // MAX_POINTS)
    steps = [(run, _neighbour_means(walked, width), axis) for run, walked, axis in steps]
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
            losses.append(CurvePoint(step, sum(finite) / ranks[0].global_samples))
    return tuple(losses)


def _neighbour_means(points: Sequence[CurvePoint], width: int) -> tuple[CurvePoint, ...]:
    """Return the means of ``width`` neighbours; all lines of a chart have one width, so that they can be compared."""
    windows = [points[at : at + width] for at in range(0, len(points), width)]
    return tuple(CurvePoint(sum(p.x for p in w) / len(w), sum(p.y for p in w) / len(w)) for w in windows)


def _apart_text(curves: Sequence[RunCurve], over: str) -> str:
    """Say the largest relative difference to the first line where both have a point, and where."""
    first = {p.x: p.y for p in curves[0].points}
    differences = [(abs(p.y / first[p.x] - 1), p.x) for curve in curves[1:] for p in curve.points if first.get(p.x)]
    most, where = max(differences, default=(0.0, 0.0))
    if not most:
        return "The lines are the same."
    apart = format_percent(most) if most >= 0.0095 else f"{most:.2g}"
    return f"The lines differ by {apart} at most (relative to {curves[0].name}, {over} {where:g})."


def throughput_charts(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> Iterator[Chart]:
    """Yield charts of samples/s over all ranks; epochs per hour where nobody says how many samples an epoch has."""
    for part in by_dataset(on_their_machines(runs), MAX_ROWS):
        rates = [_run_rate(run, drop_epochs) for run in part.runs]
        measured_rates = [rate for rate in rates if rate is not None]
        if measured_rates:
            unit, scale = rate_unit(max(rate.value for rate in measured_rates), part.runs[0].unit)
        else:
            unit, scale, rates = "epochs/h", 3600.0, [_epoch_rate(run, drop_epochs) for run in part.runs]
        rows = [
            _rate_row(run, name, rate, scale)
            for (run, name), rate in zip(part.named, rates, strict=True)
            if rate is not None or run.status != "ok"
        ]
        done = by_length(rows)
        if len(done) < 2:
            continue
        caption = (
            f"Throughput over all ranks on {part.title}, {counted(len(rows), 'run')}; most: {done[0].name} with"
            f" {done[0].text} {unit}, least: {done[-1].name} with {done[-1].text}."
        )
        if any(row.low is not None for row in done):
            caption += f" Whiskers: {INTERVAL.removesuffix(' of the median')}."
        if unit.startswith("epochs"):
            caption += " An epoch is what each run calls one; its number of samples is unknown."
        spec = stacks_chart(part.title, rows, f"throughput ({unit})", scale, ("throughput",))
        yield Chart(part.key, part.title, caption + failed_text(rows), spec)


def _rate_row(run: TrainingRun, name: str, rate: Measured | None, scale: float) -> StackRow:
    if rate is None:
        return StackRow(name, failure=failure(run))
    return StackRow(name, (rate.value,), format_number(rate.value * scale, 3), low=rate.low, high=rate.high)


def _run_rate(run: TrainingRun, drop_epochs: int) -> Measured | None:
    """Return samples/s as measured, else from whole epochs of known size."""
    if run.status != "ok" or run.samples_per_s is not None:
        return run.samples_per_s if run.status == "ok" else None
    return None if run.dataset_size is None else _epoch_rate(run, drop_epochs, run.dataset_size)


def _epoch_rate(run: TrainingRun, drop_epochs: int, samples: int = 1) -> Measured | None:
    """Return epochs per second, or their samples."""
    time = epoch_time(run, drop_epochs) if run.status == "ok" else None
    return None if time is None or time.value <= 0 else per_second(time, samples)


def mfu_charts(runs: Sequence[TrainingRun]) -> Iterator[Chart]:
    """Yield one chart a data set, where runs differ."""
    for part in by_dataset([run for run in runs if run.mfu is not None and run.status == "ok"], MAX_ROWS):
        rows = [StackRow(name, (run.mfu or 0.0,), format_percent(run.mfu or 0.0)) for run, name in part.named]
        if len({row.text for row in rows}) < 2:
            continue
        done = by_length(rows)
        caption = (
            f"Share of the devices' peak that the model's FLOP use on {part.title}, {counted(len(rows), 'run')}; most: "
            f"{done[0].name} with {done[0].text}, least: {done[-1].name} with {done[-1].text}. MFU: {MFU_CONVENTION}."
        )
        spec = stacks_chart(part.title, rows, "MFU: share of the devices' dense peak (%)", 100.0, ("MFU",))
        yield Chart(part.key, part.title, caption, spec)


VIEWS = (
    View("epochs", table=epochs_table),
    View("epoch_time", "Epoch time", charts=epoch_time_charts, stem="KEY_epoch_time_detailed"),
    View("accuracy", "Validation accuracy", charts=accuracy_charts, stem="KEY_accuracy"),
    View("loss", "Training loss", charts=loss_charts),
    View("throughput", "Throughput", charts=throughput_charts, stem="KEY_throughput"),
    View("mfu", "Model FLOP utilisation", charts=mfu_charts),
)
