"""``bench --json``, ``results.jsonl`` and ``results.csv``: what a run folder's runs are written as."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from stepscope.records import codec
from stepscope.records.run import RunRecord, Status
from stepscope.records.training import Scaling, ScalingRow, TrainingRun
from stepscope.results.scaling import speedups
from stepscope.store.flat import csv_text
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes

BENCH_SCHEMA = "stepscope.bench/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One key of a row: its type, and how to get it from a run and its row of scaling (None: no speed-up)."""

    kind: Any
    of: Callable[[TrainingRun, ScalingRow | None], Any]


def _own(name: str, kind: Any) -> Figure:
    get = attrgetter(name)
    return Figure(kind=kind, of=lambda run, _: get(run))


def _part(name: str, part: str) -> Figure:
    get = attrgetter(name)
    return Figure(kind=float | None, of=lambda run, _: getattr(get(run), part, None))


def _scaled(name: str, kind: Any) -> Figure:
    return Figure(kind=kind, of=lambda _, row: getattr(row, name, None))


def _scaling(run: TrainingRun, _: ScalingRow | None) -> Scaling | None:
    return None if run.baseline_id in (None, run.run_id) else run.scaling


def _steps(run: TrainingRun, _: ScalingRow | None) -> int | None:
    return None if run.epochs_asked is not None or run.step_ns is None else run.step_ns.n


FIGURES: Mapping[str, Figure] = {
    "cell_id": _own("run_id", str),
    "status": _own("status", Status),
    "error": _own("error", str | None),
    "workload": _own("workload", str),
    "model": _own("model_options", Mapping[str, Any]),
    "dataset": _own("dataset", str),
    "dataset_size": _own("dataset_size", int | None),
    "strategy": _own("strategy_key", str),
    "strategy_options": _own("strategy_options", Mapping[str, Any]),
    "precision": _own("precision", str),
    "accumulation": _own("accumulation", int),
    "world_size": _own("world_size", int),
    "micro_batch": _own("micro_batch", int),
    "global_batch": _own("global_batch", int),
    "device": _own("device", str),
    "backend": _own("backend", str),
    "num_parameters": _own("num_parameters", int | None),
    "steps": Figure(kind=int | None, of=_steps),
    "epochs": _own("epochs_asked", int | None),
    "step_ns_median": _part("step_ns", "value"),
    "step_ns_low": _part("step_ns", "low"),
    "step_ns_high": _part("step_ns", "high"),
    "samples_per_s": _part("samples_per_s", "value"),
    "comm_bytes_per_step": _own("comm_bytes_per_step", int | None),
    "exposed_comm_ns_median": _part("exposed_comm_ns", "value"),
    "comm_source": _own("comm_source", str | None),
    "train_loss": _own("train_loss", float | None),
    "test_accuracy": _own("test_accuracy", float | None),
    "samples_seen_per_rank": _own("samples_seen_per_rank", tuple[int, ...] | None),
    "peak_memory_bytes": _own("peak_memory_bytes", int | None),
    "speedup": _scaled("speedup", float | None),
    "efficiency": _scaled("efficiency", float | None),
    "scaling": Figure(kind=Scaling | None, of=_scaling),
    "baseline_cell_id": _own("baseline_id", str | None),
    "rating": _scaled("rating", str | None),
    "epoch_ns": _part("epoch_ns", "value"),
    "epoch_ns_low": _part("epoch_ns", "low"),
    "epoch_ns_high": _part("epoch_ns", "high"),
    "epoch_estimated": _own("epoch_estimated", bool | None),
    "steps_per_epoch": _own("steps_per_epoch", int | None),
    "exposed_comm_ns_low": _part("exposed_comm_ns", "low"),
    "exposed_comm_ns_high": _part("exposed_comm_ns", "high"),
    "threads_per_rank": _own("threads_per_rank", int | None),
    "varied": _own("varied", Mapping[str, Any]),
    "notes": _own("notes", tuple[str, ...]),
}
"""Keys of a row in their order, as docs/reference/formats.md pins them for stepscope.bench/1."""


def write_results(layout: RunLayout, runs: Sequence[TrainingRun]) -> None:
    """``results.jsonl`` (one run a line, each with its schema) and ``results.csv`` (flat)."""
    write_bytes(layout.results_jsonl, b"".join(codec.encode_line(run, header=True) for run in runs))
    write_bytes(layout.results_csv, rows_csv(runs).encode())


def bench_rows(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """A flat row a run, in order; speed-up and efficiency against the one-rank baseline that a run names."""
    scaled = speedups(runs)
    rows = [{name: figure.of(run, scaled.get(run.run_id)) for name, figure in FIGURES.items()} for run in runs]
    return [codec.to_builtins(row) for row in rows]


def rows_csv(runs: Sequence[TrainingRun]) -> str:
    """Rows as CSV in base units: unknown is an empty field, options and lists are JSON text."""
    return csv_text(tuple(FIGURES), [row.values() for row in bench_rows(runs)])


def bench_document(run: RunRecord | None, runs: Sequence[TrainingRun]) -> dict[str, Any]:
    """What ``bench --json`` prints."""
    return {
        "schema": BENCH_SCHEMA,
        "run": None if run is None else codec.to_builtins(run),
        "cells": bench_rows(runs),
    }
