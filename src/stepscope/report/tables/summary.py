"""The summary table: one line a cell, grouped by model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from stepscope.core.units import (
    format_bytes,
    format_bytes_binary,
    format_count,
    format_duration,
    format_percent,
)
from stepscope.records.training import Measured, ScalingRow, TrainingRun
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.results.labels import (
    CellLabel,
    Defaults,
    cell_labels,
    failure_label,
    ranks_label,
    strategy_defaults,
)
from stepscope.results.scaling import speedups

N = TypeVar("N", int, float)

MAX_NAMED = 3

_RATING_TONES: dict[str, Tone] = {
    "excellent": "good",
    "good": "good",
    "fair": "warn",
    "poor": "bad",
    "negative": "bad",
}


def build(rows: Sequence[TrainingRun], *, defaults: Defaults = strategy_defaults) -> Table:
    """The table of ``rows``: groups by model, data and device in order of first appearance, cells in their
    order.
    """
    labels = dict(zip((row.run_id for row in rows), cell_labels(rows, defaults=defaults), strict=True))
    order: dict[tuple[str, ...], list[TrainingRun]] = {}
    for row in rows:
        order.setdefault(_group_key(row, labels), []).append(row)
    ordered = [row for block in order.values() for row in block]
    parameters = {key: _parameters(block) for key, block in order.items()}
    scaled = speedups(rows)
    all_estimated = all(row.epoch_estimated for row in rows if row.epoch_ns is not None)
    return Table(
        key="summary",
        title="Results",
        columns=_columns(epochs_estimated=all_estimated and any(row.epoch_ns is not None for row in rows)),
        rows=tuple(
            _row(row, scaled.get(row.run_id), labels[row.run_id], parameters[key], mark_estimate=not all_estimated)
            for key, block in order.items()
            for row in block
        ),
        footnotes=_footnotes(ordered, scaled),
        notes=_row_notes(ordered, labels),
    )


TABLE = TableKind(key="summary", title="Results", needs=("rows",), build=build)


def _columns(*, epochs_estimated: bool) -> tuple[Column, ...]:
    epoch = "epoch est." if epochs_estimated else "epoch"
    return (
        Column(key="model", title="model", align="left", role="group"),
        Column(key="dataset", title="dataset", align="left", role="group"),
        Column(key="num_parameters", title="parameters", role="group"),
        Column(key="device", title="device", align="left", role="group"),
        Column(key="mode", title="mode", align="left", role="identity", lead=True),
        Column(key="world_size", title="ranks", role="identity", lead=True),
        Column(key="precision", title="precision", align="left", role="identity", short_title="prec"),
        Column(key="accumulation", title="accum", role="identity", short_title="acc"),
        Column(key="global_batch", title="batch", role="identity"),
        Column(key="epoch_ns", title=epoch, unit="ns"),
        Column(key="step_ns", title="step", unit="ns", drop=3),
        Column(key="exposed_comm_ns", title="exposed comm/step", unit="ns", short_title="comm"),
        Column(key="comm_bytes", title="bytes/step", unit="bytes", drop=2),
        Column(key="samples_per_s", title="samples/s", unit="1/s"),
        Column(key="speedup", title="speed-up", short_title="speed"),
        Column(key="efficiency", title="efficiency", short_title="eff", drop=4),
        Column(key="test_accuracy", title="accuracy", short_title="acc'y", drop=5),
        Column(key="peak_memory_bytes", title="peak memory", unit="bytes", short_title="mem", drop=1),
    )


def _row(
    row: TrainingRun, scaled: ScalingRow | None, label: CellLabel, parameters: int | None, *, mark_estimate: bool
) -> Row:
    values = (
        _name(label.model),
        _name(row.dataset or ""),
        _known(parameters, lambda n: f"{format_count(n)} parameters"),
        _name(f"{row.device}/{row.backend}"),
        _name(label.mode),
        Value(text=str(row.world_size), raw=row.world_size),
        _name(row.precision or ""),
        Value(text=str(row.accumulation), raw=row.accumulation),
        Value(text=str(row.global_batch), raw=row.global_batch),
        _epoch(row, mark_estimate=mark_estimate),
        _time(row.step_ns),
        _communication(row),
        _communication_bytes(row),
        _known(
            _value(row.samples_per_s),
            lambda x: f"{x:,.0f}".replace(",", " ") if x >= 100 else f"{x:.3g}",
        ),
        _known(None if scaled is None else scaled.speedup, lambda x: f"{x:.2f}x"),
        _efficiency(scaled),
        _known(row.test_accuracy, lambda x: f"{x:.4f}"),
        _known(row.peak_memory_bytes, format_bytes_binary),
    )
    return Row(values=values, failure=None if row.status == "ok" else failure_label(row))


def _value(measured: Measured | None) -> float | None:
    return None if measured is None else measured.value


def _time(measured: Measured | None, *, estimated: bool = False) -> Value:
    if measured is None:
        return unknown()
    return time_value(measured.value, measured.low, measured.high, estimated=estimated)


def time_value(ns: float | None, low: float | None, high: float | None, *, estimated: bool = False) -> Value:
    """A time with its interval: ``1.23 s ±2 %``, the larger side of the interval in per cent of the median."""
    if ns is None:
        return unknown()
    around, text = interval_text(ns, low, high), format_duration(ns)
    return Value(
        text=" ".join(part for part in (text, around, "est." if estimated else "") if part),
        compact=("~" if estimated else "") + text + around.replace(" %", "%"),
        raw=ns,
    )


def interval_text(middle: float, low: float | None, high: float | None) -> str:
    """``±2 %``; empty where there is no interval."""
    if low is None or high is None or middle <= 0:
        return ""
    share = max(high - middle, middle - low) / middle
    if share < 0.0005:
        return "±<0.1 %"
    return f"±{share:.1%}".replace("%", " %") if share < 0.0095 else f"±{share:.0%}".replace("%", " %")


def _epoch(row: TrainingRun, *, mark_estimate: bool) -> Value:
    estimated = mark_estimate and bool(row.epoch_estimated)
    return _time(row.epoch_ns, estimated=estimated)


def _communication(row: TrainingRun) -> Value:
    exposed = row.exposed_comm_ns
    if exposed is None:
        return unknown()
    if exposed.value == 0 and row.world_size == 1:
        return Value(text="none", raw=0, tone="dim")
    value = _time(exposed)
    if row.step_ns is None:
        return value
    share = format_percent(exposed.value / row.step_ns.value, digits=0)
    return Value(text=f"{value.text} ({share})", compact=value.compact, raw=exposed.value)


def _communication_bytes(row: TrainingRun) -> Value:
    if row.comm_bytes_per_step == 0:
        return Value(text="none", raw=0, tone="dim")
    return _known(row.comm_bytes_per_step, format_bytes)


def _efficiency(row: ScalingRow | None) -> Value:
    if row is None:
        return unknown()
    share = format_percent(row.efficiency, digits=0)
    if row.is_baseline:
        return Value(text="baseline", compact="base", raw=row.efficiency, tone="dim")
    if row.rating is None:
        return Value(text=share, compact=share.replace(" ", ""), raw=row.efficiency)
    return Value(
        text=f"{share} {row.rating}",
        compact=share.replace(" ", ""),
        raw=row.efficiency,
        tone=_RATING_TONES.get(row.rating, "plain"),
    )


def _name(text: str) -> Value:
    return Value(text=text, raw=text)


def _known(value: N | None, form: Callable[[N], str]) -> Value:
    return unknown() if value is None else Value(text=form(value), raw=value)


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
        notes.append("±: 95 % interval of the median, its larger side; none where there are too few samples.")
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
