"""What ``stepscope report`` does: read, diagnose, write every format, say what lies where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.report import ALL_FORMATS, CHART_FORMATS, DEFAULT_FORMATS, DRAWING_MODULES, missing_lines
from stepscope.cli.command import listed
from stepscope.cli.console import log, print_document, say, typed
from stepscope.cli.evidence import job_of
from stepscope.cli.findings import print_findings, print_read, show_screen
from stepscope.core.errors import ExitCode, Interrupted, StepscopeError, UsageError
from stepscope.core.forks import usable_cores
from stepscope.core.pool import get_ready
from stepscope.core.words import counted, grouped
from stepscope.diagnose.screen import further
from stepscope.store.layout import profiled_job, shown_as

if TYPE_CHECKING:
    from stepscope.api.job import Job
    from stepscope.cli.commands.report import Report
    from stepscope.results.evidence import Evidence

MOST_DRAWING = 4
SHOWN_FILES = 12
SHOWN = 3
"""Findings printed; the rest stand in the report."""


def run(options: Report) -> int:
    """Write the report; the exit code. Raises StepscopeError."""
    formats = frozenset(name for name in ALL_FORMATS if getattr(options, name)) or DEFAULT_FORMATS
    if options.title is not None and "html" not in formats:
        raise UsageError("--title is the heading of the page: add --html")
    drawers = min(usable_cores(), MOST_DRAWING) if formats.intersection(("html", *CHART_FORMATS)) else 0
    datasets = listed(",".join(options.datasets))
    if drawers > 1 and not datasets:
        get_ready(DRAWING_MODULES)
    job = job_of(options, spans="html" in formats)
    if datasets:
        job = job.on_datasets(datasets)
    evidence = job.as_read
    if drawers > 1 and datasets:  # only now: a refused name starts no process
        get_ready(DRAWING_MODULES)
    folder = _place(options, evidence)
    missing: dict[str, str] = {}
    with _naming_what_is_written(folder):
        files = job.report(
            folder,
            formats=formats,
            title=options.title or _title(options.paths),
            made_by=typed(),
            drawers=drawers,
            not_drawn=missing.update,
        )
    _replace_former(folder, files, options, formats)
    if options.json:
        files_written = [str(path) for path in files]
        document = {**job.to_json(), "schema": "stepscope.report/1", "files": files_written, "not_drawn": missing}
        print_document(document)
    else:
        _say(job, folder, files)
    for line in missing_lines(missing):
        log(f"warning: {line}", "yellow")
    return ExitCode.ENVIRONMENT if missing else ExitCode.OK


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


def _say(job: Job, folder: Path, files: tuple[Path, ...]) -> None:
    from stepscope.report.page.overview import findings_title

    show_screen(job.verdict)
    findings = job.diagnosis.findings if job.timed is not None else further(job.diagnosis)
    if findings:
        say()
        if job.timed is not None:
            say(findings_title(job.timed), "bold")
        print_findings(findings[:SHOWN])
    more = len(findings) - SHOWN
    if more > 0:
        say(f"and {counted(more, 'finding')} more", "dim")
    print_read(job.evidence, most=SHOWN_FILES, rest="the report lists them")
    say()
    for kind, paths in grouped(files, lambda path: path.suffix.lstrip(".")).items():
        what = str(paths[0]) if len(paths) == 1 else f"{folder} ({counted(len(paths), 'file')})"
        say(f"{kind:>5}  {what}")
