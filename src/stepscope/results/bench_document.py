"""``bench --json``, ``results.jsonl`` and ``results.csv``: what a run folder's runs are written as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records import codec
from stepscope.records.cell import RunRecord
from stepscope.records.training import TrainingRun
from stepscope.results.run_figures import BENCH, known
from stepscope.results.scaling import speedups
from stepscope.store.flat import csv_text
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes


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
