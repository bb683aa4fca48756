"""Result rows: what a run folder's samples say, one row a cell. Derived, never edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.config.varied import varied_settings
from stepscope.core.errors import DataError, Unavailable
from stepscope.core.words import counted
from stepscope.records import codec
from stepscope.records.cell import CellSpec
from stepscope.records.cell_result import CellResult
from stepscope.records.run import CellStatus, ResultRow, RunRecord, Status
from stepscope.results.bench_scaling import add_scaling
from stepscope.results.planned import Planned, plan_of
from stepscope.stats import measured
from stepscope.stats.measured import Estimate
from stepscope.store.flat import records_csv
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_bytes, read_cell, read_if_there, read_record
from stepscope.store.writer import write_bytes

BENCH_SCHEMA = "stepscope.bench/1"

Plans = Mapping[str, Planned | Unavailable]


def read_specs(layout: RunLayout, cell_ids: Sequence[str]) -> tuple[CellSpec, ...]:
    """The resolved cells of a run folder, in the order of ``cell_ids`` (``run.json`` has it)."""
    return tuple(read_record(layout.cell(cell_id).spec, CellSpec) for cell_id in cell_ids)


def build_rows(layout: RunLayout, cells: Sequence[CellSpec], *, plans: Plans | None = None) -> tuple[ResultRow, ...]:
    """One row for every cell, in order, from what lies in the run folder; cells that did not run have a row
    too.

    plans: cell id -> spec of its registries; None: worked out here.
    """
    if plans is None:
        plans = {cell.cell_id: plan_of(cell) for cell in cells}
    rows = [
        replace(_row(layout, cell, plans.get(cell.cell_id)), varied=varied)
        for cell, varied in zip(cells, varied_settings(cells), strict=True)
    ]
    return add_scaling(rows, cells)


def write_results(layout: RunLayout, rows: Sequence[ResultRow]) -> None:
    """``results.jsonl`` (one record a line, each with its schema) and ``results.csv`` (flat)."""
    write_bytes(layout.results_jsonl, b"".join(codec.encode_line(row, header=True) for row in rows))
    write_bytes(layout.results_csv, rows_csv(rows).encode())


def read_results(path: Path) -> tuple[ResultRow, ...]:
    """The rows of a ``results.jsonl``."""
    return tuple(codec.decode_lines(read_bytes(path), ResultRow, source=str(path)))


def rows_csv(rows: Sequence[ResultRow]) -> str:
    """Rows as CSV in base units: unknown is an empty field, options and lists are JSON text."""
    return records_csv(rows, ResultRow)


def bench_document(run: RunRecord | None, rows: Sequence[ResultRow]) -> dict[str, Any]:
    """What ``bench --json`` prints."""
    return {
        "schema": BENCH_SCHEMA,
        "run": None if run is None else codec.to_builtins(run),
        "cells": [codec.to_builtins(row) for row in rows],
    }


def _row(layout: RunLayout, spec: CellSpec, plan: Planned | Unavailable | None) -> ResultRow:
    empty = _empty_row(spec, plan)
    folder = layout.cell(spec.cell_id)
    try:
        status = read_if_there(folder.status, CellStatus)
    except DataError as error:
        return replace(empty, status="error", error=f"status unreadable: {error.what}")
    if status is None:
        return replace(empty, status="interrupted", error="not run yet")
    row = replace(empty, status=status.status, error=_reason(status))
    try:
        cell = read_cell(folder)
    except DataError as error:
        if status.status != "ok":
            return replace(row, notes=(f"partial samples unreadable: {error.what}",))
        return replace(row, status="error", error=f"samples unreadable: {error.what}")
    cell = replace(cell, spec=spec)
    row = _facts(row, cell)
    return _figures(row, cell, plan) if status.status == "ok" else _partial(row, cell)


def _empty_row(spec: CellSpec, plan: Planned | Unavailable | None) -> ResultRow:
    status: Status = "interrupted"
    return ResultRow(
        cell_id=spec.cell_id,
        status=status,
        error=None,
        workload=spec.workload,
        model=spec.model,
        dataset=spec.dataset,
        dataset_size=None,
        strategy=spec.strategy,
        strategy_options=spec.strategy_options,
        precision=spec.precision,
        accumulation=spec.accumulation,
        world_size=spec.world_size,
        micro_batch=spec.micro_batch,
        global_batch=spec.global_batch,
        device=spec.device,
        backend=spec.backend,
        num_parameters=plan.num_parameters if isinstance(plan, Planned) else None,
        steps=None,
        epochs=spec.epochs,
        step_ns_median=None,
        step_ns_low=None,
        step_ns_high=None,
        samples_per_s=None,
        comm_bytes_per_step=None,
        exposed_comm_ns_median=None,
        comm_source=None,
        train_loss=None,
        test_accuracy=None,
        samples_seen_per_rank=None,
        peak_memory_bytes=None,
        speedup=None,
        efficiency=None,
        scaling=None,
        baseline_cell_id=None,
    )


def _facts(row: ResultRow, cell: CellResult) -> ResultRow:
    """What the ranks said about the model and the data, ahead of the spec's word."""
    if not cell.summaries:
        return row
    first = cell.summaries[0]
    return replace(
        row,
        num_parameters=first.num_parameters,
        dataset_size=first.train_samples,
        threads_per_rank=first.num_threads,
        steps_per_epoch=-(-first.train_samples // cell.spec.global_batch),
    )


def _partial(row: ResultRow, cell: CellResult) -> ResultRow:
    """A cell that did not finish: what it measured is kept and counted, but is no result."""
    timed = max((sum(not step.warmup for step in rank.steps) for rank in cell.samples), default=0)
    if not timed:
        return row
    note = (
        f"{counted(timed, 'timed step')} from before it stopped {'is' if timed == 1 else 'are'} kept in "
        f"cells/{row.cell_id}; {'it is' if timed == 1 else 'they are'} not a result"
    )
    return replace(row, notes=(note,))


def _figures(row: ResultRow, cell: CellResult, plan: Planned | Unavailable | None) -> ResultRow:
    spec = cell.spec
    common = measured.common_steps(cell.samples, spec.world_size)
    timed = measured.slowest(common.full, "step_ns")
    step = measured.estimate(timed)
    notes = list(_notes(cell, common, step, plan))
    notes += measured.stability_notes(timed)
    comm = measured.estimate(measured.slowest(common.full, "exposed_comm_ns"))
    row = replace(
        row,
        comm_bytes_per_step=plan.comm_bytes_per_step if isinstance(plan, Planned) else None,
        comm_source=cell.samples[0].header.comm_source if cell.samples else None,
        peak_memory_bytes=measured.peak_memory(cell.summaries),
        train_loss=measured.mean_loss(common.timed),
        steps=None if step is None or spec.epochs is not None else step.n,
    )
    if step is not None:
        row = replace(
            row,
            step_ns_median=step.median,
            step_ns_low=step.low,
            step_ns_high=step.high,
            samples_per_s=spec.global_batch / (step.median / 1e9),
        )
    if comm is not None:
        row = replace(
            row,
            exposed_comm_ns_median=comm.median,
            exposed_comm_ns_low=comm.low,
            exposed_comm_ns_high=comm.high,
        )
    if spec.epochs is None:
        row = _estimated_epoch(row, step)
    else:
        figures = measured.epoch_figures(cell, measured.warmup_epochs(cell.samples))
        notes += figures.notes
        row = _real_epochs(row, figures)
    return replace(row, notes=tuple(dict.fromkeys(notes)))


def _estimated_epoch(row: ResultRow, step: Estimate | None) -> ResultRow:
    """Steps per epoch (the tail step counted as a whole one) x median step."""
    count = row.steps_per_epoch
    if step is None or count is None:
        return row
    return replace(
        row,
        epoch_ns=count * step.median,
        epoch_ns_low=None if step.low is None else count * step.low,
        epoch_ns_high=None if step.high is None else count * step.high,
        epoch_estimated=True,
    )


def _real_epochs(row: ResultRow, figures: measured.EpochFigures) -> ResultRow:
    row = replace(
        row,
        train_loss=figures.train_loss,
        test_accuracy=figures.test_accuracy,
        samples_seen_per_rank=figures.samples_seen_per_rank,
    )
    epoch = figures.estimate
    if epoch is None:
        return row
    return replace(row, epoch_ns=epoch.median, epoch_ns_low=epoch.low, epoch_ns_high=epoch.high, epoch_estimated=False)


def _notes(
    cell: CellResult,
    common: measured.CommonSteps,
    step: Estimate | None,
    plan: Planned | Unavailable | None,
) -> list[str]:
    notes = [note for summary in cell.summaries for note in summary.notes]
    if common.missing_ranks:
        ranks = ", ".join(map(str, common.missing_ranks))
        notes.append(f"no step time: rank {ranks} left no samples")
    elif step is None:
        notes.append("no step time: no step with a whole global batch was timed after warm-up")
    if isinstance(plan, Unavailable):
        notes.append(plan.reason)
    notes += measured.replica_notes(cell.summaries)
    return notes


def _reason(status: CellStatus) -> str | None:
    """Why a cell has no result, in one line: rank and host, then the reason or the exception's last line."""
    if status.status == "ok":
        return None
    text = status.reason or _last_line(status.exception) or _last_line(status.stderr_tail)
    where = "" if status.failing_rank is None else f"rank {status.failing_rank}"
    if where and status.failing_host:
        where += f" on {status.failing_host}"
    if text is None:
        text = f"in phase {status.phase}" if status.phase else "no reason was left behind"
    return text if not where or f"rank {status.failing_rank}" in text else f"{where}: {text}"


def _last_line(text: str | None) -> str | None:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else None
