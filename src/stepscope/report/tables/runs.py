"""The summary of training runs, whoever measured them: one line a run, grouped by model, data and precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.training import Measured, ScalingRow, TrainingRun
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._scaling import efficiency_value, first_epochs, speedup_value
from stepscope.results.figures import best_accuracy, epoch_time, exposed_fraction, too_short, train_loss
from stepscope.results.labels import STATUS_LABELS

N = TypeVar("N", int, float)


def build(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow] = (), *, drop_epochs: int = 1) -> Table:
    """The table of ``runs``: groups in order of first appearance, runs in their order."""
    by_run = {row.run_id: row for row in scaling}
    blocks: dict[str, list[TrainingRun]] = {}
    for run in runs:
        blocks.setdefault(run.group, []).append(run)
    ordered = [run for block in blocks.values() for run in block]
    return Table(
        key="summary",
        title="Training runs",
        columns=_COLUMNS,
        rows=tuple(_row(run, by_run.get(run.run_id), drop_epochs) for run in ordered),
        footnotes=_footnotes(ordered, scaling, drop_epochs),
        notes=tuple(
            f"{run.label}: not told: {', '.join(f'{key} ({why})' for key, why in run.missing.items())}"
            for run in ordered
            if run.missing
        ),
    )


_COLUMNS = (
    Column(key="group", title="runs", align="left", role="group"),
    Column(key="label", title="run", align="left", role="identity", lead=True),
    Column(key="world_size", title="ranks", role="identity", lead=True),
    Column(key="global_batch", title="global batch", short_title="batch", role="identity"),
    Column(key="epochs", title="epochs", drop=1),
    Column(key="epoch_ns", title="epoch", unit="ns"),
    Column(key="step_ns", title="step", unit="ns", drop=4),
    Column(key="samples_per_s", title="samples/s", unit="1/s"),
    Column(key="exposed_fraction", title="exposed comm", short_title="comm", drop=5),
    Column(key="speedup", title="speed-up"),
    Column(key="efficiency", title="efficiency"),
    Column(key="train_loss", title="train loss", short_title="loss", drop=3),
    Column(key="best_accuracy", title="best accuracy", short_title="accuracy"),
    Column(key="peak_memory_bytes", title="peak memory", short_title="mem", unit="bytes", drop=2),
)

TABLE = TableKind(key="runs", title="Training runs", needs=("runs", "scaling"), build=build)


def _row(run: TrainingRun, scaled: ScalingRow | None, drop_epochs: int) -> Row:
    values = (
        Value(text=run.group, raw=run.group),
        Value(text=run.label, raw=run.label),
        known(run.world_size, str),
        known(run.global_batch, str),
        known(len(run.epochs) or None, str),
        measured(epoch_time(run, drop_epochs), format_duration),
        measured(run.step_ns, format_duration),
        measured(run.samples_per_s, lambda x: f"{x:,.0f}".replace(",", " ") if x >= 100 else f"{x:.3g}"),
        known(exposed_fraction(run), lambda x: format_percent(x, digits=0)),
        speedup_value(scaled),
        efficiency_value(scaled),
        known(train_loss(run), lambda x: f"{x:.4g}"),
        known(best_accuracy(run), lambda x: f"{x:.4f}"),
        known(run.peak_memory_bytes, format_bytes_binary),
    )
    return Row(values=values, failure=failure(run))


def failure(run: TrainingRun) -> str | None:
    """``out of GPU memory: rank 1``; None for a run that finished."""
    if run.status == "ok":
        return None
    label = STATUS_LABELS.get(run.status, run.status)
    return f"{label}: {run.error.removeprefix(f'{run.source}: ')}" if run.error else label


def known(value: N | None, form: Callable[[N], str]) -> Value:
    return unknown() if value is None else Value(text=form(value), raw=value)


def measured(value: Measured | None, form: Callable[[float], str]) -> Value:
    """``1.23 s ±2 %``: the larger side of the interval."""
    if value is None:
        return unknown()
    text = form(value.value)
    if value.low is None or value.high is None or value.value <= 0:
        return Value(text=text, raw=value.value)
    share = max(value.high - value.value, value.value - value.low) / value.value
    around = "±<0.1 %" if share < 0.0005 else f"±{share:.1%}" if share < 0.0095 else f"±{share:.0%}"
    return Value(text=f"{text} {around.replace('%', ' %').replace('  ', ' ')}", compact=text, raw=value.value)


def _footnotes(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow], drop_epochs: int) -> tuple[str, ...]:
    notes = []
    several = [run for run in runs if len(run.epochs) > 1]
    if any(each.warmup is None for run in several for each in run.epochs):
        few = any(too_short(run, drop_epochs) for run in runs)
        kept = "; none where there are no more than that" if few else ""
        notes.append(
            f"epoch: median over epochs, {first_epochs(drop_epochs)} left out (--drop-epochs {drop_epochs}){kept}."
            if drop_epochs
            else "epoch: median over all epochs (--drop-epochs 0)."
        )
    elif several:
        notes.append("epoch: median over the epochs without warm-up steps.")
    if any(run.epoch_estimated for run in runs):
        notes.append("epoch of runs by steps: steps per epoch x median step; no whole epoch was run.")
    if any(m is not None and m.low is not None for run in runs for m in (run.step_ns, run.epoch_ns)):
        notes.append("±: 95 % interval, its larger side; of fewer than 6 epochs their range.")
    if any(not row.is_baseline for row in scaling):
        bases = ", ".join(dict.fromkeys(row.basis for row in scaling if not row.is_baseline))
        notes.append(f"speed-up: throughput over the baseline's, from {bases}; efficiency: speed-up / ranks.")
    failed = sum(run.status != "ok" for run in runs)
    if failed:
        notes.append(f"{counted(failed, 'run')} of {len(runs)} without a result.")
    return tuple(notes)
