"""The page's own tables: runs of any source, their scaling, their epochs; those of collectives and traces are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stepscope.core.units import format_bytes_binary, format_count, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.training import Epoch, Measured, ScalingRow, TrainingRun
from stepscope.report.comm_tables import build_all
from stepscope.report.page.words import sample_rate
from stepscope.report.tables._common import Column, Row, Table, Tone, Value, unknown
from stepscope.report.tables.summary import time_value
from stepscope.report.trace_sections import table as trace_table
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.figures import best_accuracy, epoch_time, train_loss
from stepscope.results.labels import STATUS_LABELS

N = TypeVar("N", int, float)

MAX_ROWS = 2_000
"""Rows of one table in the page; the CSV files beside it have all."""

MANY_TRACES = 4
"""From more traced jobs than this on, each shows its budget only."""

_RATING_TONES: dict[str, Tone] = {
    "excellent": "good", "good": "good", "fair": "warn", "poor": "bad", "negative": "bad",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A table as the page has it. columns: indices of those with anything in them. left_out: rows beyond the limit.

    throughout: names that all rows share, said once. fold: starts closed.
    """

    table: Table
    columns: tuple[int, ...]
    left_out: int
    throughout: str = ""
    fold: bool = False

    @property
    def measured(self) -> int:
        """Shown columns that a failed row fills with its reason: the measured ones that stand together, first of all."""
        roles = [self.table.columns[i].role for i in self.columns]
        first = roles.index("measured") if "measured" in roles else len(roles)
        after = next((n for n, role in enumerate(roles[first:]) if role != "measured"), len(roles) - first)
        return max(1, after)


def shown(table: Table, *, fold: bool = False, keep: int = MAX_ROWS) -> Shown:
    """``table`` without empty columns, with names that all rows share said once, and at most ``keep`` rows."""
    from dataclasses import replace

    rows = table.rows[:keep]
    said = [
        i
        for i, column in enumerate(table.columns)
        if column.lead or any(row.values[i].raw not in (None, "") for row in rows)
    ]
    alike = [
        i
        for i in said
        if len(rows) > 1 and _can_be_said_once(table.columns[i]) and len({row.values[i].text for row in rows}) == 1
    ]
    said = [i for i in said if i not in alike]
    return Shown(
        table=replace(table, rows=rows),
        columns=tuple(said),
        left_out=len(table.rows) - len(rows),
        throughout=", ".join(_said_once(table.columns[i], rows[0].values[i]) for i in alike),
        fold=fold,
    )


def _can_be_said_once(column: Column) -> bool:
    return column.role in ("group", "identity") and not column.lead


def _said_once(column: Column, value: Value) -> str:
    return value.text if column.role == "group" else f"{column.title} {value.text}"


def all_tables(evidence: Evidence, drop_epochs: int = 1) -> tuple[Shown, ...]:
    """Every table of the page but scaling's, which stands with its charts."""
    found = []
    if evidence.runs:
        found.append(shown(runs_table(evidence.runs, evidence.scaling, drop_epochs=drop_epochs)))
    found += [shown(table, fold=len(table.rows) > 200) for table in build_all(evidence.comm)]
    if any(run.epochs for run in evidence.runs):
        found.append(shown(epochs_table(evidence.runs), fold=True))
    return tuple(found)


def trace_tables(evidence: Evidence) -> tuple[tuple[str, tuple[Shown, ...]], ...]:
    """For each traced job its name and tables: where the time went, and for few jobs also collectives and waiting."""
    sections = ("budget",) if len(evidence.traces) > MANY_TRACES else ("budget", "collectives", "stragglers")
    return tuple((trace.name, tuple(_sections(trace, sections))) for trace in evidence.traces)


def _sections(trace: TraceEvidence, sections: Sequence[str]) -> list[Shown]:
    tables = [trace_table(trace.summary, section) for section in sections]
    return [shown(table) for table in tables if table.rows]


def runs_table(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow], *, drop_epochs: int = 1) -> Table:
    """One row a run, failed ones with their reason."""
    against = {row.run_id: row for row in scaling}
    return Table(
        key="runs",
        title="Runs",
        columns=_RUN_COLUMNS,
        rows=tuple(_run_row(run, against.get(run.run_id), drop_epochs) for run in runs),
        footnotes=(
            "±: 95 % interval, its larger side; none where there are too few samples. Unknown: –.",
            *(
                ("est.: epoch = steps per epoch x median step; no whole epoch was run.",)
                if any(run.epoch_estimated for run in runs)
                else ()
            ),
        ),
        notes=tuple(f"{run.label}: {note}" for run in runs for note in run.notes)[:50],
    )


_RUN_COLUMNS = (
    Column(key="run", title="run", align="left", role="identity", lead=True),
    Column(key="group", title="group", align="left", role="identity"),
    Column(key="dataset", title="data", align="left", role="identity"),
    Column(key="strategy", title="strategy", align="left", role="identity"),
    Column(key="precision", title="precision", align="left", role="identity"),
    Column(key="world_size", title="ranks", role="identity"),
    Column(key="global_batch", title="batch", role="identity"),
    Column(key="accumulation", title="accum", role="identity"),
    Column(key="num_parameters", title="parameters", role="identity"),
    Column(key="hardware", title="hardware", align="left", role="identity"),
    Column(key="step_ns", title="step", unit="ns"),
    Column(key="exposed_comm_ns", title="exposed comm", unit="ns"),
    Column(key="samples_per_s", title="samples/s", unit="1/s"),
    Column(key="epoch_ns", title="epoch", unit="ns"),
    Column(key="speedup", title="speed-up"),
    Column(key="efficiency", title="efficiency"),
    Column(key="train_loss", title="loss"),
    Column(key="accuracy", title="accuracy"),
    Column(key="peak_memory_bytes", title="peak memory", unit="bytes"),
    Column(key="run_id", title="id", align="left", role="identity"),
)


def _run_row(run: TrainingRun, scaled: ScalingRow | None, drop_epochs: int) -> Row:
    values = {
        "run": _name(run.label),
        "group": _name(run.group),
        "dataset": _name(run.dataset),
        "strategy": _name(run.strategy),
        "precision": _name(run.precision),
        "world_size": _known(run.world_size, str),
        "global_batch": _known(run.global_batch, str),
        "accumulation": _known(run.accumulation, str),
        "num_parameters": _known(run.num_parameters, format_count),
        "hardware": _name(run.hardware),
        "step_ns": _time(run.step_ns),
        "exposed_comm_ns": _exposed(run),
        "samples_per_s": _known(None if run.samples_per_s is None else run.samples_per_s.value, sample_rate),
        "epoch_ns": _time(epoch_time(run, drop_epochs), estimated=bool(run.epoch_estimated)),
        "speedup": _known(None if scaled is None else scaled.speedup, lambda x: f"{x:.2f}x"),
        "efficiency": _efficiency(scaled),
        "train_loss": _known(train_loss(run), _decimals),
        "accuracy": _known(best_accuracy(run), _decimals),
        "peak_memory_bytes": _known(run.peak_memory_bytes, format_bytes_binary),
        "run_id": _name(run.run_id),
    }
    return Row(values=tuple(values[c.key] for c in _RUN_COLUMNS), failure=failure_text(run))


def failure_text(run: TrainingRun) -> str | None:
    """``out of GPU memory: rank 1: ...``; None for a run that finished."""
    if run.status == "ok":
        return None
    label = STATUS_LABELS.get(run.status, run.status)
    return f"{label}: {run.error.removeprefix(f'{run.source}: ')}" if run.error else label


def scaling_table(evidence: Evidence) -> Table:
    """One row a run against its baseline; times to accuracies below the speed-up they qualify."""
    runs = {run.run_id: run for run in evidence.runs}
    rows = [Row(values=_scaling_values(row, runs[row.run_id])) for row in evidence.scaling if row.run_id in runs]
    bases = sorted({row.basis for row in evidence.scaling})
    return Table(
        key="scaling",
        title="Scaling",
        columns=_SCALING_COLUMNS,
        rows=tuple(rows),
        footnotes=(
            "speed-up: throughput (or epoch time turned over) against the baseline; efficiency: speed-up / ranks, the"
            " baseline's ranks divided out.",
            *((f"made of: {'; '.join(bases)}.",) if bases else ()),
            *(
                ("to accuracy: time until an epoch first reaches that validation accuracy, and speed-up to it.",)
                if any(row.targets for row in evidence.scaling)
                else ()
            ),
        ),
    )


_SCALING_COLUMNS = (
    Column(key="group", title="group", align="left", role="identity"),
    Column(key="run", title="run", align="left", role="identity", lead=True),
    Column(key="world_size", title="ranks", role="identity"),
    Column(key="speedup", title="speed-up"),
    Column(key="efficiency", title="efficiency"),
    Column(key="rating", title="rating", align="left"),
    Column(key="scaling", title="scaling", align="left"),
    Column(key="accuracy", title="best accuracy"),
    Column(key="targets", title="to accuracy", align="left"),
    Column(key="basis", title="made of", align="left"),
)


def _scaling_values(row: ScalingRow, run: TrainingRun) -> tuple[Value, ...]:
    around = "" if row.low is None or row.high is None else f" ({row.low:.2f} to {row.high:.2f})"
    return (
        _name(row.group),
        _name(run.label),
        Value(text=str(row.world_size), raw=row.world_size),
        Value(text=f"{row.speedup:.2f}x{around}", raw=row.speedup),
        _efficiency(row),
        _rating(row),
        _name(row.scaling),
        _known(row.best_accuracy, _decimals),
        _targets(row),
        _name(row.basis),
    )


def _targets(row: ScalingRow) -> Value:
    said = []
    for target in row.targets:
        if target.time_ns is None:
            said.append(f"{target.accuracy:g}: never")
        else:
            against = "" if target.speedup is None else f", {target.speedup:.2f}x"
            said.append(f"{target.accuracy:g}: {format_duration(target.time_ns)}{against}")
    return _name("; ".join(said) or None)


def _rating(row: ScalingRow) -> Value:
    if row.is_baseline:
        return Value(text="baseline", raw="", tone="dim")
    if row.rating is None:
        return Value(text="cannot be", raw="cannot be", tone="bad")
    return Value(text=row.rating, raw=row.rating, tone=_RATING_TONES.get(row.rating, "plain"))


def _efficiency(row: ScalingRow | None) -> Value:
    if row is None:
        return unknown()
    if row.is_baseline:
        return Value(text="baseline", raw=row.efficiency, tone="dim")
    return Value(
        text=format_percent(row.efficiency),
        raw=row.efficiency,
        tone=_RATING_TONES.get(row.rating or "negative", "plain"),
    )


def epochs_table(runs: Sequence[TrainingRun]) -> Table:
    """One row an epoch of every run."""
    rows = [(run, epoch) for run in runs for epoch in run.epochs]
    return Table(
        key="epochs",
        title="Epochs",
        columns=_EPOCH_COLUMNS,
        rows=tuple(Row(values=_epoch_values(run, epoch)) for run, epoch in rows),
        footnotes=("time: training only, slowest rank. samples: trained on by all ranks together.",),
    )


_EPOCH_COLUMNS = (
    Column(key="run", title="run", align="left", role="identity", lead=True),
    Column(key="world_size", title="ranks", role="identity"),
    Column(key="epoch", title="epoch", role="identity"),
    Column(key="duration_ns", title="time", unit="ns"),
    Column(key="train_loss", title="loss"),
    Column(key="train_accuracy", title="train accuracy"),
    Column(key="validation_loss", title="validation loss"),
    Column(key="validation_accuracy", title="validation accuracy"),
    Column(key="samples_per_s", title="samples/s", unit="1/s"),
    Column(key="samples_seen", title="samples"),
)


def _epoch_values(run: TrainingRun, epoch: Epoch) -> tuple[Value, ...]:
    return (
        _name(run.label),
        _known(run.world_size, str),
        Value(text=str(epoch.number), raw=epoch.number),
        _known(epoch.duration_ns, format_duration),
        _known(epoch.train_loss, _decimals),
        _known(epoch.train_accuracy, _decimals),
        _known(epoch.validation_loss, _decimals),
        _known(epoch.validation_accuracy, _decimals),
        _known(epoch.samples_per_s, sample_rate),
        _known(epoch.samples_seen, str),
    )


def rows_left_out(table: Shown) -> str | None:
    """What a reader must know of a table that was cut."""
    return f"{counted(table.left_out, 'more row')}: in the CSV files" if table.left_out else None


def _exposed(run: TrainingRun) -> Value:
    value = _time(run.exposed_comm_ns)
    if run.exposed_comm_ns is not None and run.exposed_comm_ns.value == 0 and run.world_size == 1:
        return Value(text="none", raw=0, tone="dim")
    if run.exposed_comm_ns is None or run.step_ns is None or not run.step_ns.value:
        return value
    part = format_percent(run.exposed_comm_ns.value / run.step_ns.value)
    return Value(text=f"{format_duration(run.exposed_comm_ns.value)} ({part})", raw=value.raw)


def _time(measured: Measured | None, *, estimated: bool = False) -> Value:
    if measured is None:
        return unknown()
    return time_value(measured.value, measured.low, measured.high, estimated=estimated)


def _decimals(value: float) -> str:
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def _name(text: str | None) -> Value:
    return unknown() if text is None else Value(text=text, raw=text)


def _known(value: N | None, form: Callable[[N], str]) -> Value:
    return unknown() if value is None else Value(text=form(value), raw=value)
