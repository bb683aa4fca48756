"""Tables of a report as files: CSV for programs, LaTeX and Markdown for papers and pages, one text to read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.records.finding import Diagnosis
from stepscope.records.training import Measured, ScalingRow, TrainingRun
from stepscope.report.performance_report import performance_report
from stepscope.report.render import csv as csv_text
from stepscope.report.render import latex, markdown
from stepscope.report.table import Table
from stepscope.report.views import comm, findings, runs, scaling
from stepscope.results.evidence import Evidence
from stepscope.results.figures import best_accuracy, dropped_epochs, epoch_time, train_loss
from stepscope.store.writer import write_bytes

FORMATS = ("csv", "tex", "md", "txt")

_RENDER: Mapping[str, Callable[[Table], str]] = {
    "csv": csv_text.render,
    "tex": latex.render,
    "md": markdown.render,
}


def write_tables(
    evidence: Evidence,
    diagnosis: Diagnosis,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    *,
    drop_epochs: int = 1,
) -> tuple[Path, ...]:
    """The tables that ``evidence`` fills, and ``performance_report.txt``; the files written.

    ``comprehensive_summary.csv``: everything known of every run. ``summary_table.tex``, ``summary_table.md``: what of it a
    page holds. ``scaling.*``, ``collectives.*``, ``findings.*``: in each format. drop_epochs: first epochs that means leave
    out. Raises UsageError for an unknown format, WriteError where files cannot be written.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(unknown("table format", name, FORMATS))
    wanted = [name for name in FORMATS if name in formats]
    found: dict[str, str] = {}
    if evidence.runs and "csv" in wanted:
        found["comprehensive_summary.csv"] = comprehensive_csv(evidence.runs, evidence.scaling, drop_epochs=drop_epochs)
    for name in wanted:
        if name == "txt":
            continue
        for stem, table in tables(evidence, diagnosis, drop_epochs=drop_epochs, raw=name == "csv").items():
            if (stem, name) != ("summary_table", "csv"):  # the comprehensive one has it all
                found[f"{stem}.{name}"] = _RENDER[name](table)
    if "txt" in wanted:
        found["performance_report.txt"] = performance_report(evidence, diagnosis, drop_epochs=drop_epochs)
    for name, text in found.items():
        write_bytes(folder / name, text.encode(errors="replace"))
    return tuple(folder / name for name in found)


def tables(evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int = 1, raw: bool = False) -> dict[str, Table]:
    """Stem of the file -> table, of those that have a row. raw: for programs, every figure in a column of its own."""
    made = {
        "summary_table": runs.build(evidence.runs, evidence.scaling, drop_epochs=drop_epochs),
        "scaling": scaling.build(evidence.scaling, evidence.runs, drop_epochs=drop_epochs, raw=raw),
        "collectives": comm.build(evidence.comm),
        "findings": findings.build(diagnosis.findings),
    }
    return {stem: table for stem, table in made.items() if table.rows}


def comprehensive_csv(every: Iterable[TrainingRun], scaled: Iterable[ScalingRow], *, drop_epochs: int = 1) -> str:
    """One line a run with everything known of it, in base units (ns, bytes, 1/s, fractions of 1); unknown is empty."""
    by_run = {row.run_id: row for row in scaled}
    rows = [_line(run, by_run.get(run.run_id), drop_epochs) for run in every]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow("" if value is None else value for value in row.values())
    return text.getvalue()


def _line(run: TrainingRun, row: ScalingRow | None, drop_epochs: int) -> dict[str, object]:
    target = row.targets[-1] if row is not None and row.targets else None
    return {
        "run_id": run.run_id,
        "label": run.label,
        "group": run.group,
        "source": run.source,
        "status": run.status,
        "error": run.error,
        "model": run.model,
        "dataset": run.dataset,
        "dataset_size": run.dataset_size,
        "strategy": run.strategy,
        "precision": run.precision,
        "accumulation": run.accumulation,
        "world_size": run.world_size,
        "micro_batch": run.micro_batch,
        "global_batch": run.global_batch,
        "device": run.device,
        "backend": run.backend,
        "hardware": run.hardware,
        "num_parameters": run.num_parameters,
        "epochs": len(run.epochs) or None,
        "dropped_epochs": dropped_epochs(run, drop_epochs) if run.epochs else None,
        **_measured("epoch_ns", epoch_time(run, drop_epochs)),
        "epoch_estimated": run.epoch_estimated,
        **_measured("step_ns", run.step_ns),
        **_measured("samples_per_s", run.samples_per_s),
        "unit": run.unit,
        **_measured("exposed_comm_ns", run.exposed_comm_ns),
        "comm_bytes_per_step": run.comm_bytes_per_step,
        "train_loss": train_loss(run),
        "best_accuracy": best_accuracy(run),
        "test_accuracy": run.test_accuracy,
        "peak_memory_bytes": run.peak_memory_bytes,
        "baseline_run_id": None if row is None else row.baseline_id,
        "scaling": run.scaling if row is None or row.scaling is None else row.scaling,
        "basis": None if row is None else row.basis,
        "speedup": None if row is None else row.speedup,
        "speedup_low": None if row is None else row.low,
        "speedup_high": None if row is None else row.high,
        "efficiency": None if row is None else row.efficiency,
        "rating": None if row is None else row.rating,
        "target_accuracy": None if target is None else target.accuracy,
        "target_epochs": None if target is None else target.reached_epochs,
        "target_ns": None if target is None else target.time_ns,
        "target_speedup": None if target is None else target.speedup,
        "notes": "; ".join(run.notes),
    }


def _measured(name: str, value: Measured | None) -> dict[str, object]:
    return {
        name: None if value is None else value.value,
        f"{name}_low": None if value is None else value.low,
        f"{name}_high": None if value is None else value.high,
    }
