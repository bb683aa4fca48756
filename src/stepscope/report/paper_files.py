"""Tables of a report as files: CSV for programs, LaTeX and Markdown for papers and pages, one text to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.records.finding import Diagnosis, JobVerdict
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.page.tables import experiment_tables, memory_tables, run_tables, step_tables
from stepscope.report.performance_report import performance_report
from stepscope.report.render import csv, latex, markdown
from stepscope.report.table import Table
from stepscope.report.views import comm, findings, runs, scaling, scaling_budget
from stepscope.report.views import history as history_view
from stepscope.results.evidence import Evidence
from stepscope.results.history import history
from stepscope.results.run_figures import CSV, known
from stepscope.store.flat import csv_text
from stepscope.store.writer import write_bytes

FORMATS = ("csv", "tex", "md", "txt")

_RENDER: Mapping[str, Callable[[Table], str]] = {
    "csv": csv.render,
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
    verdict: JobVerdict | None = None,
) -> tuple[Path, ...]:
    """The tables that ``evidence`` fills, and ``performance_report.txt``; the files written.

    ``comprehensive_summary.csv``: everything known of every run. ``summary_table.tex``, ``summary_table.md``: what of it a
    page holds. ``scaling.*``, ``overlap_gain.*``, ``memory_batches.*``, ``links.*``, ``collectives.*``, ``step_parts.*``,
    ``findings.*``: in each format.
    drop_epochs: first epochs that means leave out. verdict: of a profiled job, with which the text begins. Raises
    UsageError for an unknown format, WriteError where files cannot be written.
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
        found["performance_report.txt"] = performance_report(
            evidence, diagnosis, drop_epochs=drop_epochs, verdict=verdict
        )
    for name, text in found.items():
        write_bytes(folder / name, text.encode(errors="replace"))
    return tuple(folder / name for name in found)


def tables(evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int = 1, raw: bool = False) -> dict[str, Table]:
    """Stem of the file -> table, of those that have a row. raw: for programs, every figure in a column of its own."""
    made = {
        "summary_table": runs.build(evidence.runs, evidence.scaling, drop_epochs=drop_epochs),
        "scaling": scaling.build(evidence.scaling, evidence.runs, drop_epochs=drop_epochs, raw=raw),
        "scaling_budget": scaling_budget.build(evidence.scaling_budgets),
        "history": history_view.build(history(evidence)),
        "collectives": comm.build(evidence.comm),
        "findings": findings.build(diagnosis.findings),
    }
    more = (
        *experiment_tables(evidence),
        *step_tables(evidence),
        *run_tables(evidence, drop_epochs=drop_epochs),
        *memory_tables(evidence),
    )
    made |= {table.key: table for table in more}
    return {stem: table for stem, table in made.items() if table.rows}


def comprehensive_csv(every: Iterable[TrainingRun], scaled: Iterable[ScalingRow], *, drop_epochs: int = 1) -> str:
    """One line a run with everything known of it, in base units (ns, bytes, 1/s, fractions of 1); unknown is empty."""
    by_run = {row.run_id: row for row in scaled}
    found = [known(run, by_run.get(run.run_id), drop_epochs=drop_epochs) for run in every]
    return csv_text(tuple(CSV), [[figure.of(each) for figure in CSV.values()] for each in found])
