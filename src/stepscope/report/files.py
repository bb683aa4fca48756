"""Tables of a report as files; of the former report in their folder what `report` wrote there goes, and no other file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import unknown
from stepscope.records.cell import ReportFiles
from stepscope.records.finding import Diagnosis, JobVerdict
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.charts import CAPTIONS
from stepscope.report.contents import experiment_tables, memory_tables, run_tables, step_tables
from stepscope.report.performance_report import performance_report
from stepscope.report.render.files import as_csv, as_latex, as_markdown
from stepscope.report.table import Table
from stepscope.report.views import comm, findings, runs, scaling
from stepscope.report.views import history as history_view
from stepscope.results.evidence import Evidence
from stepscope.results.figures import run_facts
from stepscope.results.history import history
from stepscope.results.run_figures import CSV
from stepscope.store.reader import read_if_there
from stepscope.store.writer import csv_text, write_bytes, write_record, writing

FORMATS = ("csv", "tex", "md", "txt")

_RENDER: Mapping[str, Callable[[Table], str]] = {"csv": as_csv, "tex": as_latex, "md": as_markdown}


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
        "scaling": scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs, raw=raw),
        "scaling_budget": scaling.scaling_budget_table(evidence.scaling_budgets),
        "history": history_view.build(history(evidence)),
        "collectives": comm.comm_table(evidence.comm),
        "findings": findings.findings_table(diagnosis.findings),
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
    found = [run_facts(run, by_run.get(run.run_id), drop_epochs=drop_epochs) for run in every]
    return csv_text(tuple(CSV), [[figure.of(each) for figure in CSV.values()] for each in found])


LIST = ".stepscope-report.json"
CHARTS = frozenset({"png", "svg", "pdf"})


def is_of_others(folder: Path, of: Sequence[str]) -> bool:
    """Whether the report in ``folder`` is of other results than ``of``; False where none is, or one that was stopped."""
    former = _former(folder)
    left = any((folder / name).exists() for name in former.files)
    return left and former.of not in ("", _hash(of))


def replace_former(
    folder: Path, written: Sequence[Path], *, of: Sequence[str], formats: Collection[str]
) -> tuple[Path, ...]:
    """Remove what the former report left in ``folder`` and this one did not write; the files removed.

    A report of the same results (``of``) in other ``formats`` adds to the former one: the files that it has in others stay.
    A file that is not as it was written stays, too. Raises WriteError.
    """
    former = _former(folder)
    names = {path.name for path in written}
    same = _hash(of)
    stale = {
        name
        for name in former.files
        if name not in names and (former.of != same or not _formats_of(name).isdisjoint(formats))
    }
    removed = [folder / name for name in sorted(stale) if _is_as_written(folder / name, former.files[name])]
    for path in removed:
        with writing(path):
            path.unlink(missing_ok=True)
    if written or former.files:
        kept = {name: digest for name, digest in former.files.items() if name not in stale | names}
        write_record(folder / LIST, ReportFiles(of=same, files=kept | _digests(written)))
    return tuple(removed)


def _hash(of: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(of).encode(errors="surrogateescape")).hexdigest()


def remember(folder: Path, written: Iterable[Path]) -> None:
    """Note the files of a report that was stopped, so that the next one takes their place. Raises WriteError."""
    former = _former(folder)
    write_record(folder / LIST, ReportFiles(of="", files={**former.files, **_digests(written)}))


def _former(folder: Path) -> ReportFiles:
    """What the last report wrote: nothing where no list says so; names with a folder in them are none of a report's."""
    found = None
    with suppress(DataError):
        found = read_if_there(folder / LIST, ReportFiles)
    if found is None:
        return ReportFiles(of="", files={})
    return ReportFiles(of=found.of, files={n: d for n, d in found.files.items() if Path(n).name == n and n != LIST})


def _formats_of(name: str) -> frozenset[str]:
    """The options of `report` with which it writes this file."""
    if name == CAPTIONS or name.endswith(".vl.json"):
        return CHARTS
    return frozenset({"html" if name.endswith(".gz") else Path(name).suffix.lstrip(".")})


def _is_as_written(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and _digest(path) == digest


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: _digest(path) for path in paths if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
