"""What ``stepscope report`` does: read, diagnose, write every format, say what lies where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import listed
from stepscope.cli.console import log, print_document, say, typed
from stepscope.cli.evidence import read_evidence
from stepscope.cli.findings import print_findings, print_read, show_screen
from stepscope.core.errors import Interrupted, StepscopeError, UsageError
from stepscope.core.forks import usable_cores
from stepscope.core.pool import get_ready, side_by_side
from stepscope.core.words import counted, grouped
from stepscope.diagnose.screen import further, of_evidence, of_job
from stepscope.store.layout import profiled_job, shown_as

if TYPE_CHECKING:
    from stepscope.cli.commands.report import Report
    from stepscope.records.finding import Diagnosis, JobVerdict
    from stepscope.report.charts import Drawing
    from stepscope.results.evidence import Evidence

CHART_FORMATS = ("png", "svg", "pdf")
TABLE_FORMATS = ("csv", "tex", "md", "txt")
ALL_FORMATS = frozenset({"html", *CHART_FORMATS, *TABLE_FORMATS})
MOST_DRAWING = 4
DRAWING_MODULES = ("stepscope.report.render.picture", "vl_convert")
"""What processes that draw, from two on, import first, while results are read."""

SHOWN_FILES = 12
SHOWN = 3
"""Findings printed; the rest stand in the report."""


def run(options: Report) -> int:
    """Write the report; the exit code. Raises StepscopeError."""
    from stepscope.diagnose.engine import diagnose
    from stepscope.diagnose.verdict import judge

    formats = frozenset(name for name in ALL_FORMATS if getattr(options, name)) or ALL_FORMATS - {"pdf"}
    if options.title is not None and "html" not in formats:
        raise UsageError("--title is the heading of the page: add --html")
    drawers = min(usable_cores(), MOST_DRAWING) if formats.intersection(("html", *CHART_FORMATS)) else 0
    datasets = listed(",".join(options.datasets))
    if drawers > 1 and not datasets:
        get_ready(DRAWING_MODULES)
    evidence = read_evidence(options, spans="html" in formats)
    if datasets:
        from stepscope.results.joining import on_datasets

        evidence = on_datasets(evidence, datasets, drop_epochs=options.drop_epochs)
        if drawers > 1:  # only now: a refused name starts no process
            get_ready(DRAWING_MODULES)
    folder = _place(options, evidence)
    with (
        _naming_what_is_written(folder),
        _drawing(evidence, formats, drawers, drop_epochs=options.drop_epochs) as drawing,
    ):
        diagnosis = diagnose(evidence)
        judged = judge(evidence, diagnosis)
        verdict = None if judged is None else judged.verdict
        if judged is not None:
            diagnosis, evidence = judged.diagnosis, judged.evidence
        files = _write(evidence, diagnosis, verdict, folder, options, formats, drawing)
    _replace_former(folder, files, options, formats)
    if options.json:
        from stepscope.report.documents import diagnose_document

        files_written = [str(path) for path in files]
        print_document(
            {**diagnose_document(evidence, diagnosis, verdict), "schema": "stepscope.report/1", "files": files_written}
        )
    else:
        _say(evidence, diagnosis, verdict, folder, files)
    return 0


def _place(options: Report, evidence: Evidence) -> Path:
    """Return the folder of the report. No other results' report lies there, unless --force says that it may go.

    Raises UsageError.
    """
    from stepscope.report.files import is_of_others

    of = _reported(options)
    folder = options.output or default_folder(evidence)
    if options.force or not is_of_others(folder, of):
        return folder
    if options.output is not None:
        raise UsageError(
            f"{folder} holds the report of other results",
            fix="choose another folder with -o DIR, or add --force to replace it",
        )
    further = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(candidate for candidate in further if not is_of_others(candidate, of))


def _reported(options: Report) -> list[str]:
    """Return what a report is of."""
    selection = [f"--cell {options.cell}"] if options.cell is not None else []
    return [*sorted(str(path.resolve()) for path in options.paths), *selection, *sorted(options.datasets)]


def _replace_former(folder: Path, files: tuple[Path, ...], options: Report, formats: frozenset[str]) -> None:
    from stepscope.report.files import replace_former

    if removed := replace_former(folder, files, of=_reported(options), formats=formats):
        log(f"{folder}: {counted(len(removed), 'file')} of the former report removed")


@contextmanager
def _naming_what_is_written(folder: Path) -> Iterator[None]:
    """Raise, at Ctrl-C within the block, Interrupted that counts the files of ``folder`` that were written until then."""
    from stepscope.report.files import remember

    before = _modified(folder)
    try:
        yield
    except KeyboardInterrupt:
        new = [path for path, when in _modified(folder).items() if before.get(path) != when]
        if not new:
            raise Interrupted(f"interrupted: nothing is written in {folder}") from None
        with suppress(StepscopeError):
            remember(folder, new)
        page = "report.html is one of them" if folder / "report.html" in new else "report.html is not one of them"
        raise Interrupted(
            f"interrupted: {counted(len(new), 'file')} of the report in {folder}; {page}",
            fix="run the command again: it writes all files",
        ) from None


def _modified(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*") if path.is_file()}


@contextmanager
def _drawing(
    evidence: Evidence, formats: frozenset[str], drawers: int, *, drop_epochs: int
) -> Iterator[Drawing | None]:
    """Begin the charts. Other processes draw while this one diagnoses, where it has cores."""
    if not drawers:
        yield None
        return
    from stepscope.report.charts import begin, records_of

    charted = tuple(name for name in CHART_FORMATS if name in formats)
    records = records_of(evidence, drop_epochs=drop_epochs)
    if drawers < 2:
        yield begin(records, charted)
        return
    with side_by_side(drawers, prepared=True) as executor:
        yield begin(records, charted, executor=executor)


def _write(
    evidence: Evidence,
    diagnosis: Diagnosis,
    verdict: JobVerdict | None,
    folder: Path,
    options: Report,
    formats: frozenset[str],
    drawing: Drawing | None,
) -> tuple[Path, ...]:
    """Write tables, charts and the page below ``folder``; return the files."""
    from stepscope.report.charts import write
    from stepscope.report.files import write_tables
    from stepscope.report.page import merged_files, write_page

    drop = options.drop_epochs
    tables = tuple(name for name in TABLE_FORMATS if name in formats)
    written = write_tables(evidence, diagnosis, folder, tables, drop_epochs=drop, verdict=verdict) if tables else ()
    page: tuple[Path, ...] = ()
    if "html" in formats:
        merged = merged_files(evidence, folder)
        path = write_page(
            folder / "report.html",
            title=options.title or _title(options.paths),
            evidence=evidence,
            diagnosis=diagnosis,
            made_by=typed(),
            drop_epochs=drop,
            drawing=drawing,
            merged=merged,
            verdict=verdict,
        )
        page = (path, *merged.values())
    charts = write(drawing, folder) if drawing is not None and drawing.formats else ()
    return (*page, *written, *charts)


def default_folder(evidence: Evidence) -> Path:
    """Return ``RUN/report`` of one run folder of ours, else ``stepscope-report/NAME`` here, never beside others' files."""
    first = evidence.sources[0]
    if len(evidence.sources) == 1 and first.kind in ("bench", "comm"):
        return first.path / "report"
    path, job = shown_as(first.path).resolve(), profiled_job(first.path)
    name = path.name or "results"
    if job is not None and path != job.resolve():  # one window of several, or all of them
        name = f"{job.resolve().name}-{name}" if len(evidence.sources) == 1 else job.resolve().name
    return Path("stepscope-report") / (name if path.is_dir() else name.split(".")[0])


def _title(paths: Sequence[Path]) -> str:
    """Write what was asked for, by name."""
    names = list(dict.fromkeys(path.resolve().name for path in paths))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _say(
    evidence: Evidence, diagnosis: Diagnosis, verdict: JobVerdict | None, folder: Path, files: tuple[Path, ...]
) -> None:
    from stepscope.report.page.overview import findings_title

    show_screen(of_evidence(evidence, diagnosis) if verdict is None else of_job(verdict))
    findings = diagnosis.findings if verdict is not None else further(diagnosis)
    if findings:
        say()
        if verdict is not None:
            say(findings_title(verdict), "bold")
        print_findings(findings[:SHOWN])
    more = len(findings) - SHOWN
    if more > 0:
        say(f"and {counted(more, 'finding')} more", "dim")
    print_read(evidence, most=SHOWN_FILES, rest="the report lists them")
    say()
    for kind, paths in grouped(files, lambda path: path.suffix.lstrip(".")).items():
        what = str(paths[0]) if len(paths) == 1 else f"{folder} ({counted(len(paths), 'file')})"
        say(f"{kind:>5}  {what}")
