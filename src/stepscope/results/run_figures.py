"""Every figure of a run in one table: what ``bench --json``, ``results.jsonl``, ``results.csv`` and
``comprehensive_summary.csv`` hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.records import codec
from stepscope.records.cell import RunRecord
from stepscope.records.nouns import Scaling, Status
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.figures import best_accuracy, dropped_epochs, epoch_time, train_loss
from stepscope.results.scaling import speedups
from stepscope.store.layout import RunLayout
from stepscope.store.writer import csv_text, write_bytes


def known(run: TrainingRun, row: ScalingRow | None, *, drop_epochs: int = 1) -> SimpleNamespace:
    """What the figures of a run are taken from. row: its speed-up; None: there is none.

    scaled: how it is compared with its baseline, None for the baseline itself. target: the highest accuracy with a time.
    """
    return SimpleNamespace(
        run=run,
        row=row,
        steps=None if run.epochs_asked is not None or run.step_ns is None else run.step_ns.n,
        epochs=len(run.epochs) or None,
        dropped_epochs=dropped_epochs(run, drop_epochs) if run.epochs else None,
        epoch=epoch_time(run, drop_epochs),
        train_loss=train_loss(run),
        best_accuracy=best_accuracy(run),
        scaling=run.scaling if row is None or row.scaling is None else row.scaling,
        scaled=None if run.baseline_id in (None, run.run_id) else run.scaling,
        target=row.targets[-1] if row is not None and row.targets else None,
    )


@dataclass(frozen=True, slots=True)
class RunFigure:
    """One figure: its type, where :func:`known` has it, its key in stepscope.bench/1 and in the CSV of all figures."""

    kind: Any
    path: str
    bench: str | None = None
    csv: str | None = None

    def of(self, known: SimpleNamespace) -> Any:
        """Its value; None: unknown."""
        found: Any = known
        for name in self.path.split("."):
            if found is None:
                return None
            found = getattr(found, name)
        return found


def _both(key: str, kind: Any, path: str = "") -> RunFigure:
    return RunFigure(kind, path or f"run.{key}", key, key)


FIGURES = (
    RunFigure(str, "run.run_id", "cell_id", "run_id"),
    RunFigure(str, "run.label", csv="label"),
    RunFigure(str, "run.group", csv="group"),
    RunFigure(str, "run.source", csv="source"),
    _both("status", Status),
    _both("error", str | None),
    RunFigure(str, "run.workload", "workload"),
    RunFigure(Mapping[str, Any], "run.model_options", "model"),
    RunFigure(str | None, "run.model", csv="model"),
    _both("dataset", str),
    _both("dataset_size", int | None),
    RunFigure(str, "run.strategy_key", "strategy"),
    RunFigure(str | None, "run.strategy", csv="strategy"),
    RunFigure(Mapping[str, Any], "run.strategy_options", "strategy_options"),
    _both("precision", str),
    _both("accumulation", int),
    _both("world_size", int),
    _both("micro_batch", int),
    _both("global_batch", int),
    _both("device", str),
    _both("backend", str),
    RunFigure(str | None, "run.hardware", csv="hardware"),
    _both("num_parameters", int | None),
    RunFigure(int | None, "steps", "steps"),
    RunFigure(int | None, "run.epochs_asked", "epochs"),
    RunFigure(int | None, "epochs", csv="epochs"),
    RunFigure(int | None, "dropped_epochs", csv="dropped_epochs"),
    RunFigure(float | None, "run.step_ns.value", "step_ns_median", "step_ns"),
    _both("step_ns_low", float | None, "run.step_ns.low"),
    _both("step_ns_high", float | None, "run.step_ns.high"),
    _both("samples_per_s", float | None, "run.samples_per_s.value"),
    RunFigure(float | None, "run.samples_per_s.low", csv="samples_per_s_low"),
    RunFigure(float | None, "run.samples_per_s.high", csv="samples_per_s_high"),
    RunFigure(str, "run.unit", csv="unit"),
    _both("comm_bytes_per_step", int | None),
    RunFigure(float | None, "run.exposed_comm_ns.value", "exposed_comm_ns_median", "exposed_comm_ns"),
    RunFigure(str | None, "run.comm_source", "comm_source"),
    _both("train_loss", float | None, "train_loss"),
    RunFigure(float | None, "best_accuracy", csv="best_accuracy"),
    _both("test_accuracy", float | None),
    RunFigure(tuple[int, ...] | None, "run.samples_seen_per_rank", "samples_seen_per_rank"),
    _both("peak_memory_bytes", int | None),
    _both("speedup", float | None, "row.speedup"),
    RunFigure(float | None, "row.low", csv="speedup_low"),
    RunFigure(float | None, "row.high", csv="speedup_high"),
    _both("efficiency", float | None, "row.efficiency"),
    RunFigure(Scaling | None, "scaled", "scaling"),
    RunFigure(Scaling | None, "scaling", csv="scaling"),
    RunFigure(str | None, "run.baseline_id", "baseline_cell_id"),
    RunFigure(str | None, "row.baseline_id", csv="baseline_run_id"),
    RunFigure(str | None, "row.basis", csv="basis"),
    _both("rating", str | None, "row.rating"),
    _both("epoch_ns", float | None, "epoch.value"),
    _both("epoch_ns_low", float | None, "epoch.low"),
    _both("epoch_ns_high", float | None, "epoch.high"),
    _both("epoch_estimated", bool | None),
    RunFigure(int | None, "run.steps_per_epoch", "steps_per_epoch"),
    _both("exposed_comm_ns_low", float | None, "run.exposed_comm_ns.low"),
    _both("exposed_comm_ns_high", float | None, "run.exposed_comm_ns.high"),
    RunFigure(float | None, "target.accuracy", csv="target_accuracy"),
    RunFigure(int | None, "target.reached_epochs", csv="target_epochs"),
    RunFigure(float | None, "target.time_ns", csv="target_ns"),
    RunFigure(float | None, "target.speedup", csv="target_speedup"),
    RunFigure(int | None, "run.threads_per_rank", "threads_per_rank"),
    RunFigure(Mapping[str, Any], "run.varied", "varied"),
    _both("notes", tuple[str, ...]),
    _both("model_flop", float | None),
    _both("mfu", float | None),
    _both("hfu", float | None),
)
"""In the order of their columns, as docs/reference/formats.md pins it for stepscope.bench/1."""

BENCH: Mapping[str, RunFigure] = {figure.bench: figure for figure in FIGURES if figure.bench}
CSV: Mapping[str, RunFigure] = {figure.csv: figure for figure in FIGURES if figure.csv}


def write_results(layout: RunLayout, runs: Sequence[TrainingRun]) -> None:
    """``results.jsonl`` (one run a line, each with its schema) and ``results.csv`` (flat)."""
    write_bytes(layout.results_jsonl, b"".join(codec.encode_line(run, header=True) for run in runs))
    write_bytes(layout.results_csv, rows_csv(runs).encode())


def bench_rows(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """A flat row a run, in order; speed-up and efficiency against the baseline that a run names."""
    scaled = speedups(runs)
    every = [known(run, scaled.get(run.run_id)) for run in runs]
    return [codec.to_builtins({key: figure.of(each) for key, figure in BENCH.items()}) for each in every]


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
