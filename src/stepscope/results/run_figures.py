"""Every figure of a run in one table: what ``bench --json``, ``results.jsonl``, ``results.csv`` and
``comprehensive_summary.csv`` hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

from stepscope.core.dataclass import dataclass
from stepscope.records import codec
from stepscope.records.cell import RunRecord
from stepscope.records.nouns import Measured, Scaling, Status
from stepscope.records.training import TrainingRun
from stepscope.results.figures import Figure, at_path, figures_of, run_facts
from stepscope.results.scaling import speedups
from stepscope.store.layout import RunLayout
from stepscope.store.writer import csv_text, write_bytes


@dataclass(frozen=True, slots=True)
class RunColumn:
    """One column: its type, where ``run_facts`` has it, its key in stepscope.bench/1 and in the CSV of all figures.

    part: of a figure with an interval, which of its numbers.
    """

    kind: Any
    value: str | Figure
    bench: str | None = None
    csv: str | None = None
    part: Part = "value"

    def of(self, facts: SimpleNamespace) -> Any:
        """Return the column's value; None: unknown."""
        if isinstance(self.value, str):
            return at_path(facts, self.value)
        reading = self.value.read(facts)
        return getattr(reading, self.part) if isinstance(reading, Measured) else reading


Part = Literal["value", "low", "high"]
_FIGURES = figures_of("run")


def _shared_run_column(key: str, kind: Any, path: str = "") -> RunColumn:
    return RunColumn(kind, path or f"run.{key}", key, key)


def _figure_column(key: str, part: Part = "value", *, bench: str | None = "") -> RunColumn:
    """Return the column of a declared figure. bench: its key in stepscope.bench/1, where that is another; None: it is not
    there."""
    declared = _FIGURES[key]
    name = key if part == "value" else f"{key}_{part}"
    kind = int | None if declared.unit in ("bytes", "count") else float | None
    return RunColumn(kind, declared, name if bench == "" else bench, name, part)


_PINNED = (
    RunColumn(str, "run.run_id", "cell_id", "run_id"),
    RunColumn(str, "run.label", csv="label"),
    RunColumn(str, "run.group", csv="group"),
    RunColumn(str, "run.source", csv="source"),
    _shared_run_column("status", Status),
    _shared_run_column("error", str | None),
    RunColumn(str, "run.workload", "workload"),
    RunColumn(Mapping[str, Any], "run.model_options", "model"),
    RunColumn(str | None, "run.model", csv="model"),
    _shared_run_column("dataset", str),
    _shared_run_column("dataset_size", int | None),
    RunColumn(str, "run.strategy_key", "strategy"),
    RunColumn(str | None, "run.strategy", csv="strategy"),
    RunColumn(Mapping[str, Any], "run.strategy_options", "strategy_options"),
    _shared_run_column("precision", str),
    _shared_run_column("accumulation", int),
    _shared_run_column("world_size", int),
    _shared_run_column("micro_batch", int),
    _shared_run_column("global_batch", int),
    _shared_run_column("device", str),
    _shared_run_column("backend", str),
    RunColumn(str | None, "run.hardware", csv="hardware"),
    _shared_run_column("num_parameters", int | None),
    RunColumn(int | None, "steps", "steps"),
    RunColumn(int | None, "run.epochs_asked", "epochs"),
    RunColumn(int | None, "epochs", csv="epochs"),
    RunColumn(int | None, "dropped_epochs", csv="dropped_epochs"),
    _figure_column("step_ns", bench="step_ns_median"),
    _figure_column("step_ns", "low"),
    _figure_column("step_ns", "high"),
    _figure_column("samples_per_s"),
    _figure_column("samples_per_s", "low", bench=None),
    _figure_column("samples_per_s", "high", bench=None),
    RunColumn(str, "run.unit", csv="unit"),
    _figure_column("comm_bytes_per_step"),
    _figure_column("exposed_comm_ns", bench="exposed_comm_ns_median"),
    RunColumn(str | None, "run.comm_source", "comm_source"),
    _figure_column("train_loss"),
    _figure_column("best_accuracy", bench=None),
    _figure_column("test_accuracy"),
    RunColumn(tuple[int, ...] | None, "run.samples_seen_per_rank", "samples_seen_per_rank"),
    _figure_column("peak_memory_bytes"),
    _figure_column("speedup"),
    _figure_column("speedup", "low", bench=None),
    _figure_column("speedup", "high", bench=None),
    _figure_column("efficiency"),
    RunColumn(Scaling | None, "scaled", "scaling"),
    RunColumn(Scaling | None, "scaling", csv="scaling"),
    RunColumn(str | None, "run.baseline_id", "baseline_cell_id"),
    RunColumn(str | None, "row.baseline_id", csv="baseline_run_id"),
    RunColumn(str | None, "row.basis", csv="basis"),
    _shared_run_column("rating", str | None, "row.rating"),
    _shared_run_column("epoch_ns", float | None, "epoch.value"),
    _shared_run_column("epoch_ns_low", float | None, "epoch.low"),
    _shared_run_column("epoch_ns_high", float | None, "epoch.high"),
    _shared_run_column("epoch_estimated", bool | None),
    RunColumn(int | None, "run.steps_per_epoch", "steps_per_epoch"),
    _figure_column("exposed_comm_ns", "low"),
    _figure_column("exposed_comm_ns", "high"),
    RunColumn(float | None, "target.accuracy", csv="target_accuracy"),
    RunColumn(int | None, "target.reached_epochs", csv="target_epochs"),
    RunColumn(float | None, "target.time_ns", csv="target_ns"),
    RunColumn(float | None, "target.speedup", csv="target_speedup"),
    RunColumn(int | None, "run.threads_per_rank", "threads_per_rank"),
    RunColumn(Mapping[str, Any], "run.varied", "varied"),
    _shared_run_column("notes", tuple[str, ...]),
    _shared_run_column("model_flop", float | None),
    _figure_column("mfu"),
    _figure_column("hfu"),
)
"""Columns in their order, as docs/reference/formats.md pins it for stepscope.bench/1."""

MORE = tuple(key for key, figure in _FIGURES.items() if not any(column.value is figure for column in _PINNED))
"""Figures of a run that no format pins: the last columns."""

COLUMNS = (*_PINNED, *map(_figure_column, MORE))
BENCH: Mapping[str, RunColumn] = {column.bench: column for column in COLUMNS if column.bench}
CSV: Mapping[str, RunColumn] = {column.csv: column for column in COLUMNS if column.csv}


def write_results(layout: RunLayout, runs: Sequence[TrainingRun]) -> None:
    """``results.jsonl`` (one run a line, each with its schema) and ``results.csv`` (flat)."""
    write_bytes(layout.results_jsonl, b"".join(codec.encode_line(run, header=True) for run in runs))
    write_bytes(layout.results_csv, rows_csv(runs).encode())


def bench_rows(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """A flat row a run, in order; speed-up and efficiency against the baseline that a run names."""
    scaled = speedups(runs)
    every = [run_facts(run, scaled.get(run.run_id)) for run in runs]
    return [codec.to_builtins({key: figure.of(facts) for key, figure in BENCH.items()}) for facts in every]


def rows_csv(runs: Sequence[TrainingRun]) -> str:
    """Rows as CSV in base units: unknown is an empty field, options and lists are JSON text."""
    return csv_text(tuple(BENCH), [row.values() for row in bench_rows(runs)])


def bench_document(
    run: RunRecord | None, runs: Sequence[TrainingRun], *, experiment: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What ``bench --json`` prints. experiment: rows of what was expected and found; none: the run is no experiment."""
    return {
        **codec.headed("bench/1"),
        "run": None if run is None else codec.to_builtins(run),
        "cells": bench_rows(runs),
        "experiment": list(experiment),
    }
