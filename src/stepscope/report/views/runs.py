"""The summary of training runs, whoever measured them: one line a run, grouped by model, data and precision."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_count, format_percent
from stepscope.core.words import counted
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.table import Column, Format, Table, binary_size, duration, figure, rate, tabled, times, whole
from stepscope.report.views._common import View
from stepscope.report.views._training import (
    efficiency_value,
    exposed_value,
    first_epochs,
    measured,
    speedup_value,
)
from stepscope.results.figures import best_accuracy, epoch_time, exposed_fraction, too_short, train_loss
from stepscope.results.labels import failure_label


def build(
    runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow] = (), *, drop_epochs: int = 1, every: bool = False
) -> Table:
    """The table of ``runs``: groups in order of first appearance, runs in their order.

    every: with all that tells runs apart, for displays that leave out what is the same throughout.
    """
    by_run = {row.run_id: row for row in scaling}
    blocks: dict[str, list[TrainingRun]] = {}
    for run in runs:
        blocks.setdefault(run.group, []).append(run)
    ordered = [run for block in blocks.values() for run in block]
    percent = Format(lambda share: format_percent(share, digits=0))
    columns = (
        Column("group", "runs", lambda run: run.group, role="group"),
        Column("label", "run", lambda run: run.label, role="identity", lead=True),
        Column("dataset", "data", lambda run: run.dataset, role="identity"),
        Column("strategy", "strategy", lambda run: run.strategy, role="identity"),
        Column("precision", "precision", lambda run: run.precision, role="identity"),
        Column("world_size", "ranks", lambda run: run.world_size, whole, role="identity", lead=True),
        Column(
            "global_batch", "global batch", lambda run: run.global_batch, whole, short_title="batch", role="identity"
        ),
        Column("accumulation", "accum", lambda run: run.accumulation, whole, role="identity"),
        Column("num_parameters", "parameters", lambda run: run.num_parameters, Format(format_count), role="identity"),
        Column("hardware", "hardware", lambda run: run.hardware, role="identity"),
        Column("epochs", "epochs", lambda run: len(run.epochs) or None, whole, drop=1),
        Column("epoch_ns", "epoch", lambda run: measured(epoch_time(run, drop_epochs), duration), duration),
        Column("step_ns", "step", lambda run: measured(run.step_ns, duration), duration, drop=4),
        Column("samples_per_s", "samples/s", lambda run: measured(run.samples_per_s, rate), rate),
        Column("exposed_fraction", "exposed comm", exposed_fraction, percent, short_title="comm", drop=5),
        Column("exposed_comm_ns", "exposed comm", exposed_value, duration),
        Column("speedup", "speed-up", lambda run: speedup_value(by_run.get(run.run_id)), times),
        Column("efficiency", "efficiency", lambda run: efficiency_value(by_run.get(run.run_id)), whole),
        Column("train_loss", "train loss", train_loss, figure, short_title="loss", drop=3),
        Column("best_accuracy", "best accuracy", best_accuracy, Format("{:.4f}".format), short_title="accuracy"),
        Column(
            "peak_memory_bytes", "peak memory", lambda r: r.peak_memory_bytes, binary_size, short_title="mem", drop=2
        ),
        Column("run_id", "id", lambda run: run.run_id, role="identity"),
    )
    return tabled(
        "summary",
        "Training runs",
        (column for column in columns if column.key not in (_PAPER if every else _EVERY)),
        ordered,
        failure=failure_label,
        footnotes=_footnotes(ordered, scaling, drop_epochs),
        notes=tuple(
            f"{run.label}: not told: {', '.join(f'{key} ({why})' for key, why in run.missing.items())}"
            for run in ordered
            if run.missing
        ),
    )


_EVERY = ("dataset", "strategy", "precision", "accumulation", "num_parameters", "hardware", "exposed_comm_ns", "run_id")
_PAPER = ("exposed_fraction",)

VIEW = View(key="runs", title="Training runs", needs=("runs", "scaling"), table=build)


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
        notes.append("±: 95% interval, its larger side; of fewer than 6 epochs their range.")
    if any(not row.is_baseline for row in scaling):
        bases = ", ".join(dict.fromkeys(row.basis for row in scaling if not row.is_baseline))
        notes.append(f"speed-up: throughput over the baseline's, from {bases}; efficiency: speed-up / ranks.")
    failed = sum(run.status != "ok" for run in runs)
    if failed:
        notes.append(f"{counted(failed, 'run')} of {len(runs)} without a result.")
    return tuple(notes)
