"""Scaling: speed-up per epoch or step, and beside it what it takes to get as good: time to an accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.training import ScalingRow, TargetTime, TrainingRun
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._scaling import efficiency_value, first_epochs, speedup_value

NEVER = "never"


def build(
    scaling: Sequence[ScalingRow],
    runs: Sequence[TrainingRun] = (),
    *,
    drop_epochs: int = 1,
    raw: bool = False,
) -> Table:
    """One line a run and target accuracy; groups in order of first appearance.

    raw: for programs, with columns for what people read inside another one (interval, rating).
    """
    labels = {run.run_id: run.label for run in runs}
    blocks: dict[str, list[ScalingRow]] = {}
    for row in scaling:
        blocks.setdefault(row.group, []).append(row)
    ordered = [row for block in blocks.values() for row in block]
    return Table(
        key="scaling",
        title="Scaling",
        columns=tuple(column for column in _COLUMNS if raw or column.key not in _RAW),
        rows=tuple(
            Row(values=_values(row, target, labels, raw=raw)) for row in ordered for target in (row.targets or (None,))
        ),
        footnotes=_footnotes(ordered, drop_epochs),
    )


_COLUMNS = (
    Column(key="group", title="runs", align="left", role="group"),
    Column(key="label", title="run", align="left", role="identity", lead=True),
    Column(key="world_size", title="ranks", role="identity", lead=True),
    Column(key="baseline_world_size", title="baseline ranks", short_title="base", role="identity", drop=2),
    Column(key="scaling", title="scaling", align="left", role="identity"),
    Column(key="basis", title="from", align="left", role="identity", drop=1),
    Column(key="speedup", title="speed-up"),
    Column(key="speedup_low", title="low"),
    Column(key="speedup_high", title="high"),
    Column(key="efficiency", title="efficiency"),
    Column(key="rating", title="rating", align="left"),
    Column(key="best_accuracy", title="best accuracy", short_title="best", drop=4),
    Column(key="baseline_best_accuracy", title="baseline's best", short_title="base best", drop=3),
    Column(key="target_accuracy", title="to accuracy"),
    Column(key="target_epochs", title="epochs", drop=5),
    Column(key="target_ns", title="time to it", unit="ns"),
    Column(key="target_speedup", title="speed-up to it"),
)

_RAW = ("speedup_low", "speedup_high", "rating")

TABLE = TableKind(key="scaling", title="Scaling", needs=("scaling", "runs"), build=build)


def _values(row: ScalingRow, target: TargetTime | None, labels: dict[str, str], *, raw: bool) -> tuple[Value, ...]:
    label = labels.get(row.run_id, row.run_id)
    rating = unknown() if row.rating is None else Value(text=row.rating, raw=row.rating)
    return (
        Value(text=row.group, raw=row.group),
        Value(text=label, raw=label),
        Value(text=str(row.world_size), raw=row.world_size),
        Value(text=str(row.baseline_world_size), raw=row.baseline_world_size),
        unknown() if row.scaling is None else Value(text=row.scaling, raw=row.scaling),
        Value(text=row.basis, raw=row.basis),
        speedup_value(row),
        *((_ratio(row.low), _ratio(row.high)) if raw else ()),
        efficiency_value(row),
        *((rating,) if raw else ()),
        _accuracy(row.best_accuracy),
        _accuracy(row.baseline_best_accuracy),
        _accuracy(None if target is None else target.accuracy),
        *_reached(target),
    )


def _reached(target: TargetTime | None) -> tuple[Value, Value, Value]:
    """Epochs, time and speed-up to the target; ``never`` for a run that does not get there."""
    if target is None:
        return unknown(), unknown(), unknown()
    if target.reached_epochs is None:
        never = Value(text=NEVER, raw=None, tone="bad")
        return never, never, Value(text=NEVER, raw=None, tone="bad")
    time = target.time_ns
    speedup = target.speedup
    return (
        Value(text=str(target.reached_epochs), raw=target.reached_epochs),
        unknown() if time is None else Value(text=format_duration(time), raw=time),
        unknown()
        if speedup is None
        else Value(text=f"{speedup:.2f}x", raw=speedup, tone="bad" if speedup < 1 else "plain"),
    )


def _ratio(value: float | None) -> Value:
    return unknown() if value is None else Value(text=f"{value:.2f}x", raw=value)


def _accuracy(value: float | None) -> Value:
    return unknown() if value is None else Value(text=f"{value:.4g}", raw=value)


def _footnotes(rows: Sequence[ScalingRow], drop_epochs: int) -> tuple[str, ...]:
    if not rows:
        return ()
    dropped = first_epochs(drop_epochs) if drop_epochs else "no epoch"
    notes = [
        "speed-up: throughput over the baseline's; efficiency: speed-up / (ranks / baseline ranks): excellent above 0.9,"
        " good above 0.8, fair above 0.5, negative for a speed-up below 1.",
        f"means over epochs leave {dropped} out (--drop-epochs {drop_epochs}).",
    ]
    kinds = {row.scaling for row in rows if not row.is_baseline}
    if "strong" in kinds:
        notes.append("strong: the same global batch (or data set) on more ranks.")
    if "weak" in kinds:
        notes.append("weak: the same batch a rank on more ranks.")
    if any(row.targets for row in rows):
        notes.append(
            "time to an accuracy: all epochs up to and with the first that reaches it in validation, none left out; never:"
            " no epoch does. A run that is faster per epoch and never gets there has not scaled."
        )
    return tuple(notes)
