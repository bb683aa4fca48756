"""The summary table: one line a cell, grouped by model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.core.units import format_count, format_percent
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.table import Column, Format, Table, Value, binary_size, duration, rate, size, tabled, times, whole
from stepscope.report.views._common import View
from stepscope.report.views._training import efficiency_value, exposed_value, measured
from stepscope.results.labels import (
    CellLabel,
    Defaults,
    cell_labels,
    failure_label,
    ranks_label,
    strategy_defaults,
)
from stepscope.results.scaling import speedups

MAX_NAMED = 3


def build(rows: Sequence[TrainingRun], *, defaults: Defaults = strategy_defaults) -> Table:
    """The table of ``rows``: groups by model, data and device in order of first appearance, cells in their
    order.
    """
    labels = dict(zip((row.run_id for row in rows), cell_labels(rows, defaults=defaults), strict=True))
    order: dict[tuple[str, ...], list[TrainingRun]] = {}
    for row in rows:
        order.setdefault(_group_key(row, labels), []).append(row)
    ordered = [row for block in order.values() for row in block]
    scaled = speedups(rows)
    all_estimated = all(row.epoch_estimated for row in rows if row.epoch_ns is not None)
    epoch_title = "epoch est." if all_estimated and any(row.epoch_ns is not None for row in rows) else "epoch"
    parameters = {row.run_id: _parameters(block) for block in order.values() for row in block}

    def epoch(row: TrainingRun) -> Value:
        estimated = not all_estimated and bool(row.epoch_estimated)
        return measured(row.epoch_ns, duration, estimated=estimated, tight=True)

    def step(row: TrainingRun) -> Value:
        return measured(row.step_ns, duration, tight=True)

    def moved(row: TrainingRun) -> Value:
        return Value(text="none", raw=0, tone="dim") if row.comm_bytes_per_step == 0 else size(row.comm_bytes_per_step)

    def speedup(row: TrainingRun) -> float | None:
        return scaled[row.run_id].speedup if row.run_id in scaled else None

    def efficiency(row: TrainingRun) -> Value:
        return _efficiency(scaled.get(row.run_id))

    accuracy = Format("{:.4f}".format)
    count = Format(lambda n: f"{format_count(n)} parameters")
    return tabled(
        "summary",
        "Results",
        (
            Column("model", "model", lambda row: labels[row.run_id].model, role="group"),
            Column("dataset", "dataset", lambda row: row.dataset or "", role="group"),
            Column("num_parameters", "parameters", lambda row: parameters[row.run_id], count, role="group"),
            Column("device", "device", lambda row: f"{row.device}/{row.backend}", role="group"),
            Column("mode", "mode", lambda row: labels[row.run_id].mode, role="identity", lead=True),
            Column("world_size", "ranks", lambda row: row.world_size, whole, role="identity", lead=True),
            Column("precision", "precision", lambda row: row.precision or "", role="identity", short_title="prec"),
            Column("accumulation", "accum", lambda row: row.accumulation, whole, role="identity", short_title="acc"),
            Column("global_batch", "batch", lambda row: row.global_batch, whole, role="identity"),
            Column("epoch_ns", epoch_title, epoch, duration),
            Column("step_ns", "step", step, duration, drop=3),
            Column(
                "exposed_comm_ns", "exposed comm/step", lambda row: exposed_value(row, tight=True), duration,
                short_title="comm",
            ),
            Column("comm_bytes", "bytes/step", moved, size, drop=2),
            Column("samples_per_s", "samples/s", lambda row: row.samples_per_s and row.samples_per_s.value, rate),
            Column("speedup", "speed-up", speedup, times, short_title="speed"),
            Column("efficiency", "efficiency", efficiency, whole, short_title="eff", drop=4),
            Column("test_accuracy", "accuracy", lambda row: row.test_accuracy, accuracy, short_title="acc'y", drop=5),
            Column(
                "peak_memory_bytes", "peak memory", lambda row: row.peak_memory_bytes, binary_size,
                short_title="mem", drop=1,
            ),
        ),
        ordered,
        failure=failure_label,
        footnotes=_footnotes(ordered, scaled),
        notes=_row_notes(ordered, labels),
    )  # fmt: skip


VIEW = View(key="summary", title="Results", needs=("rows",), table=build)


def _efficiency(row: ScalingRow | None) -> Value:
    if row is None or row.is_baseline or row.rating is not None:
        return efficiency_value(row, digits=0)
    return Format(lambda share: format_percent(share, digits=0))(row.efficiency)


def _group_key(row: TrainingRun, labels: Mapping[str, CellLabel]) -> tuple[str, ...]:
    return (labels[row.run_id].model, row.dataset or "", row.device or "", row.backend or "")


def _parameters(block: Sequence[TrainingRun]) -> int | None:
    """The model's size; one model has one, so any row that knows it speaks for the block."""
    return next((row.num_parameters for row in block if row.num_parameters is not None), None)


def _row_notes(rows: Sequence[TrainingRun], labels: Mapping[str, CellLabel]) -> tuple[str, ...]:
    """Notes of single rows, with the model where there are several; the same note on several rows is one line."""
    several = len({labels[row.run_id].model for row in rows}) > 1
    said: dict[str, list[TrainingRun]] = {}
    for row in rows:
        for note in row.notes:
            said.setdefault(note, []).append(row)
    lines = []
    for note, owners in said.items():
        of_owners = [labels[row.run_id] for row in owners]
        names = [f"{label.model}, {label.name}" if several else label.name for label in of_owners]
        if len(owners) > 1 and len(owners) == sum(row.status == "ok" for row in rows):
            who = "all"
        elif len(owners) > MAX_NAMED:
            who = f"{_listed(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"
        else:
            who = _listed(names)
        lines.append(f"{who}: {note}")
    return tuple(lines)


def _listed(names: Sequence[str]) -> str:
    return ("; " if any(", " in name for name in names) else ", ").join(names)


def _footnotes(rows: Sequence[TrainingRun], scaled: Mapping[str, ScalingRow]) -> tuple[str, ...]:
    shown = [row for row in rows if row.status == "ok"]
    notes = []
    if any(row.step_ns is not None and row.step_ns.low is not None for row in shown):
        notes.append("±: 95% interval of the median, its larger side; none where there are too few samples.")
    if any(row.epoch_estimated is False for row in shown):
        notes.append("epoch: median of whole epochs, training only, slowest rank; ± of fewer than 6 is their range.")
    if any(row.epoch_estimated for row in shown):
        mark = " (est. or ~)" if any(row.epoch_estimated is False for row in shown) else " est."
        notes.append(f"epoch{mark}: steps per epoch x median step; no whole epoch was run.")
    if any(row.exposed_comm_ns is not None and row.exposed_comm_ns.value for row in shown):
        notes.append(
            "exposed comm/step (comm): from the last local gradient ready to all gradients usable, slowest rank"
            " (share of the step). bytes/step: payload of one rank."
        )
    notes += _scaling_footnotes([scaled[row.run_id] for row in shown if row.run_id in scaled])
    notes += _thread_footnotes(shown)
    if shown and all(row.test_accuracy is None for row in shown):
        notes.append("no accuracy: it takes whole epochs and real labels.")
    if any(row.device == "cpu" and (row.world_size or 1) > 1 for row in shown):
        notes.append(
            "CPU ranks share cores and talk over loopback: their communication is CPU work, so overlap gains little"
            " and these figures do not carry over to GPUs."
        )
    return tuple(notes)


def _scaling_footnotes(rows: Sequence[ScalingRow]) -> list[str]:
    if not rows:
        return []
    kinds = {row.scaling for row in rows}
    rules = {"strong": "strong scaling: same global batch", "weak": "weak scaling: same batch per rank"}
    how = "; ".join(text for kind, text in rules.items() if kind in kinds)
    tail = f" ({how})" if how else ""
    return [f"speed-up: samples/s over the 1-rank baseline of the same settings{tail}; efficiency: speed-up / ranks."]


def _thread_footnotes(rows: Sequence[TrainingRun]) -> list[str]:
    """Said when rows that a speed-up compares computed with different numbers of threads a rank."""
    by_id = {row.run_id: row for row in rows}
    pairs = [(row, by_id[row.baseline_id]) for row in rows if row.baseline_id in by_id]
    differ = [pair for pair in pairs if len({row.threads_per_rank for row in pair} - {None}) > 1]
    if not differ:
        return []
    compared = {row.run_id: row for pair in differ for row in pair}
    threads = sorted({(row.world_size or 0, row.threads_per_rank or 0) for row in compared.values()})
    said = ", ".join(f"{number} on {ranks_label(ranks)}" for ranks, number in threads)
    why = (
        "the 1-rank baseline computes with cores that the ranks divide among themselves, so speed-up here says what"
        " splitting the same cores brings, not what more cores would"
        if any(row.device == "cpu" for row in compared.values())
        else "the host work of the 1-rank baseline (data, launching kernels) has more cores to itself"
    )
    return [f"threads per rank: {said}; {why} (the same for all: launch.threads_per_rank)."]
