"""Tables of a report as files; of the former report in their folder what `report` wrote there goes, and no other file.

``performance_report.txt``: findings first, each with its numbers and the next command; then what they rest on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope import __version__
from stepscope.core.errors import DataError, UsageError
from stepscope.core.units import format_percent
from stepscope.core.words import grouped, unknown
from stepscope.diagnose import narrator
from stepscope.diagnose.narrator import also, below, coverage_line, faster
from stepscope.records.cell import ReportFiles
from stepscope.records.finding import Advice, Diagnosis, Finding, JobVerdict, Skipped
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.charts import CAPTIONS
from stepscope.report.contents import experiment_tables, machine_tables, memory_tables, run_tables, step_tables
from stepscope.report.page.overview import findings_title, profiled_machine, worth_saying
from stepscope.report.render.files import as_csv, as_latex, as_markdown
from stepscope.report.render.terminal import ascii_text, paragraph, render_ascii
from stepscope.report.summary import environment_lines
from stepscope.report.table import Table
from stepscope.report.views import comm, findings, runs, scaling
from stepscope.report.views.runs import history_table
from stepscope.results.evidence import Evidence
from stepscope.results.figures import run_facts
from stepscope.results.history import history
from stepscope.results.run_figures import CSV
from stepscope.store.layout import profiled_job
from stepscope.store.reader import read_if_there
from stepscope.store.writer import csv_text, write_bytes, write_record, writing

MAX_RUNS = 60
"""Lines of the table of runs; more stand in ``comprehensive_summary.csv``."""


def performance_report(
    evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int = 1, verdict: JobVerdict | None = None
) -> str:
    """Write the whole text: ASCII, lines of 100 characters where words and commands allow.

    verdict: of a profiled job.
    """
    sections = [
        _report_title(evidence),
        "" if verdict is None else _verdict_text(verdict),
        *map(_table_text, step_tables(evidence)),
        _findings_text(diagnosis.findings, findings_title(verdict)) if verdict is None or diagnosis.findings else "",
        _scaling_text(evidence, drop_epochs),
        _runs_text(evidence, drop_epochs),
        *map(_table_text, experiment_tables(evidence)),
        *map(_table_text, run_tables(evidence, drop_epochs=drop_epochs)),
        *map(_table_text, machine_tables(evidence)),
        _skipped_text(_worth_saying(evidence, diagnosis)),
        _quiet_text(diagnosis),
        _machine_text(evidence),
        _sources_text(evidence),
    ]
    return "\n".join(section for section in sections if section)


def _underlined(text: str, mark: str = "-") -> str:
    return f"{text}\n{mark * len(text)}\n"


def _text_section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([_underlined(title), *lines, ""])


def _table_text(table: Table) -> str:
    return f"{_underlined(table.title)}\n{render_ascii(table)}"


def _item_lines(texts: Iterable[str]) -> list[str]:
    return [paragraph(text, indent="  ", first="- ") for text in texts]


def _report_title(evidence: Evidence) -> str:
    paths = dict.fromkeys(profiled_job(source.path) or source.path for source in evidence.sources)
    names = ", ".join(path.resolve().name for path in paths)
    lines = [_underlined("Performance report", "="), paragraph(f"Of {names or 'nothing'}, by stepscope {__version__}.")]
    return "\n".join([*lines, ""])


def _verdict_text(verdict: JobVerdict) -> str:
    """Write the first screen without its tree, which is the table below."""
    lines = [paragraph(f"{verdict.headline}.")]
    if rests_on := coverage_line(verdict):
        lines.append(f"  {rests_on}")
    if verdict.memory is not None and verdict.memory.line:
        lines.append(paragraph(verdict.memory.line, indent="          ", first="  memory  "))
    if verdict.stake_fraction:
        lines.append(f"  stake  {faster(verdict.stake_fraction)}")
    lines += [paragraph(line, indent="         ", first="  why    ") for line in verdict.why]
    for advice in verdict.advice[:1]:
        lines.append(paragraph(advice.text, indent="         ", first="  next   "))
        if advice.command:
            lines.append(f"         $ {_unwrapped_command(advice.command)}")
    lines += [paragraph(line, indent="         ", first="  also   ") for line in also(verdict)]
    lines += [paragraph(line, indent="    ", first="  ") for line in below(verdict)]
    return _text_section("Verdict", lines)


def _findings_text(ordered: Sequence[Finding], title: str) -> str:
    lines = [_underlined(title)]
    if not ordered:
        lines += ["No rule found anything. The checks that were skipped are listed below.", ""]
    for number, finding in enumerate(ordered, start=1):
        lines += [*_finding_lines(finding, number), ""]
    return "\n".join(lines)


def _finding_lines(finding: Finding, number: int) -> list[str]:
    mark = f"{number}. "
    indent = " " * len(mark)
    title = f"[{finding.severity}] {finding.title}"
    lines = [paragraph(title, indent=indent, first=mark)]
    lines += [paragraph(text, indent=f"{indent}  ", first=f"{indent}- ") for text in finding.evidence]
    stake = (
        ""
        if finding.stake_fraction is None
        else f" A fix could recover up to {format_percent(finding.stake_fraction)} of the step."
    )
    about = f" About: {finding.subject}." if finding.subject else ""
    lines.append(
        paragraph(f"Confidence: {finding.certainty.rstrip('.')}.{stake}{about} Rule: {finding.rule}.", indent=indent)
    )
    for advice in finding.advice:
        lines += _advice_lines(advice, indent)
    return lines


def _advice_lines(advice: Advice, indent: str) -> list[str]:
    lines = [paragraph(advice.text, indent=f"{indent}   ", first=f"{indent}-> ")]
    if advice.command:
        lines.append(f"{indent}   $ {_unwrapped_command(advice.command)}")
    return lines


def _unwrapped_command(text: str) -> str:
    """A command is never wrapped: it would no longer be one."""
    return " ".join(ascii_text(text).split())


def _scaling_text(evidence: Evidence, drop_epochs: int) -> str:
    if not any(not row.is_baseline for row in evidence.scaling):
        return ""
    return _table_text(scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs))


def _runs_text(evidence: Evidence, drop_epochs: int) -> str:
    if not evidence.runs:
        return ""
    shown = evidence.runs[:MAX_RUNS]
    table = runs.build(shown, evidence.scaling, drop_epochs=drop_epochs)
    lines = [_underlined("Runs"), render_ascii(table)]
    if len(shown) < len(evidence.runs):
        lines.append(f"The first {MAX_RUNS} of {len(evidence.runs)} runs; all: comprehensive_summary.csv.\n")
    return "\n".join(lines)


def _worth_saying(evidence: Evidence, diagnosis: Diagnosis) -> Sequence[Skipped]:
    """Return the skipped checks that are worth a word; none where no rule could look, as at a profile without traces."""
    if not evidence.profiled:
        return diagnosis.skipped
    return worth_saying(diagnosis) if diagnosis.findings or diagnosis.quiet else ()


def _skipped_text(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return ""
    lines = []
    for (reason, command), same in grouped(skipped, lambda skip: (skip.reason, skip.command)).items():
        lines.append(paragraph(f"{', '.join(skip.rule for skip in same)}: {reason}", indent="  ", first="- "))
        if command:
            lines.append(f"  $ {_unwrapped_command(command)}")
    return _text_section("Skipped checks", lines)


def _quiet_text(diagnosis: Diagnosis) -> str:
    if not diagnosis.quiet:
        return ""
    return _text_section(
        "Looked at, nothing found", _item_lines(f"{quiet.rule}: {quiet.looked_at}" for quiet in diagnosis.quiet)
    )


def _machine_text(evidence: Evidence) -> str:
    rows = tuple(cell.run for cell in evidence.cells)
    ranks = [cell.result.summaries[0] for cell in evidence.cells if cell.result.summaries]
    lines = []
    if evidence.environment is not None or ranks:
        lines += _item_lines(environment_lines(evidence.environment, rows, ranks))
    elif not evidence.hardware and not evidence.profiled and not any(run.hardware for run in evidence.runs):
        lines.append("Not recorded.")
    for job in evidence.profiled:
        lines += _item_lines(profiled_machine(job))
    names = dict.fromkeys((*evidence.hardware, *(run.hardware for run in evidence.runs if run.hardware)))
    if evidence.environment is None:
        lines += _item_lines(f"ran on {name}" for name in names)
    return _text_section("Machine", lines)


def _sources_text(evidence: Evidence) -> str:
    lines = _item_lines(
        f"{source.path} ({source.kind}{f', read as {source.format}' * (source.format is not None)})"
        for source in evidence.sources
    )
    lines += _item_lines([*(f"{state}: {text}" for state, text in narrator.files_found(evidence)), *evidence.all_notes])
    for record in evidence.records:
        lines += [
            f"- made by: {_unwrapped_command(' '.join(argv))}" for argv in record.commands or (record.argv,) if argv
        ]
    return _text_section("Sources and notes", lines)


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
    """Write the tables that ``evidence`` fills, and ``performance_report.txt``; return the files written.

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
    texts: dict[str, str] = {}
    if evidence.runs and "csv" in wanted:
        texts["comprehensive_summary.csv"] = comprehensive_csv(evidence.runs, evidence.scaling, drop_epochs=drop_epochs)
    for name in wanted:
        if name == "txt":
            continue
        for stem, table in tables(evidence, diagnosis, drop_epochs=drop_epochs, raw=name == "csv").items():
            if (stem, name) != ("summary_table", "csv"):  # the comprehensive one has it all
                texts[f"{stem}.{name}"] = _RENDER[name](table)
    if "txt" in wanted:
        texts["performance_report.txt"] = performance_report(
            evidence, diagnosis, drop_epochs=drop_epochs, verdict=verdict
        )
    for name, text in texts.items():
        write_bytes(folder / name, text.encode(errors="replace"))
    return tuple(folder / name for name in texts)


def tables(evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int = 1, raw: bool = False) -> dict[str, Table]:
    """Return stem of the file -> table, of those that have a row.

    raw: for programs, every figure in a column of its own.
    """
    made = {
        "summary_table": runs.build(evidence.runs, evidence.scaling, drop_epochs=drop_epochs),
        "scaling": scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs, raw=raw),
        "scaling_budget": scaling.scaling_budget_table(evidence.scaling_budgets),
        "history": history_table(history(evidence)),
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
    """Write one line a run with everything known of it; unknown is empty.

    Figures are in base units: ns, bytes, 1/s, fractions of 1.
    """
    by_run = {row.run_id: row for row in scaled}
    facts_of_runs = [run_facts(run, by_run.get(run.run_id), drop_epochs=drop_epochs) for run in every]
    return csv_text(tuple(CSV), [[figure.of(facts) for figure in CSV.values()] for facts in facts_of_runs])


LIST = ".stepscope-report.json"
CHARTS = frozenset({"png", "svg", "pdf"})


def is_of_others(folder: Path, of: Sequence[str]) -> bool:
    """Return whether the report in ``folder`` is of other results than ``of``; False without one, or if it was stopped."""
    former = _former_files(folder)
    left = any((folder / name).exists() for name in former.files)
    return left and former.of not in ("", _texts_hash(of))


def replace_former(
    folder: Path, written: Sequence[Path], *, of: Sequence[str], formats: Collection[str]
) -> tuple[Path, ...]:
    """Remove what the former report left in ``folder`` and this one did not write; return the files removed.

    A report of the same results (``of``) in other ``formats`` adds to the former one: the files that it has in others stay.
    A file that is not as it was written stays, too. Raises WriteError.
    """
    former = _former_files(folder)
    names = {path.name for path in written}
    same = _texts_hash(of)
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
        write_record(folder / LIST, ReportFiles(of=same, files=kept | _file_digests(written)))
    return tuple(removed)


def _texts_hash(of: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(of).encode(errors="surrogateescape")).hexdigest()


def remember(folder: Path, written: Iterable[Path]) -> None:
    """Note the files of a report that was stopped, so that the next one takes their place. Raises WriteError."""
    former = _former_files(folder)
    write_record(folder / LIST, ReportFiles(of="", files={**former.files, **_file_digests(written)}))


def _former_files(folder: Path) -> ReportFiles:
    """Return what the last report wrote: nothing where no list says so. A name with a folder in it is none of a report's."""
    former = None
    with suppress(DataError):
        former = read_if_there(folder / LIST, ReportFiles)
    if former is None:
        return ReportFiles(of="", files={})
    return ReportFiles(of=former.of, files={n: d for n, d in former.files.items() if Path(n).name == n and n != LIST})


def _formats_of(name: str) -> frozenset[str]:
    """Return the options of `report` with which it writes this file."""
    if name == CAPTIONS or name.endswith(".vl.json"):
        return CHARTS
    return frozenset({"html" if name.endswith(".gz") else Path(name).suffix.lstrip(".")})


def _is_as_written(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and _file_digest(path) == digest


def _file_digests(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: _file_digest(path) for path in paths if path.is_file()}


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
