"""The report of a job: page, tables and charts as files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.core.pool import side_by_side
from stepscope.core.words import counted, grouped, in_words, listed

if TYPE_CHECKING:
    from stepscope.records.finding import Diagnosis, JobVerdict
    from stepscope.report.charts import Drawing
    from stepscope.results.evidence import Evidence

Format = Literal["html", "png", "svg", "pdf", "csv", "tex", "md", "txt"]
CHART_FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
TABLE_FORMATS: tuple[Format, ...] = ("csv", "tex", "md", "txt")
ALL_FORMATS = frozenset[Format]({"html", *CHART_FORMATS, *TABLE_FORMATS})
DEFAULT_FORMATS: frozenset[Format] = ALL_FORMATS - {"pdf"}
DRAWING_MODULES = ("stepscope.report.render.picture", "vl_convert")
"""What processes that draw, from two on, import first, while results are read."""


def write_report(
    evidence: Evidence,
    judged: Callable[[], tuple[Evidence, Diagnosis, JobVerdict | None]],
    folder: Path,
    *,
    title: str,
    formats: Collection[str] = DEFAULT_FORMATS,
    drop_epochs: int = 1,
    made_by: tuple[str, ...] = ("stepscope.open",),
    drawers: int = 1,
    not_drawn: Callable[[Mapping[str, str]], object] | None = None,
) -> tuple[Path, ...]:
    """Write page, tables and charts below ``folder``; return the files.

    judged: makes of what was read what the report says; asked while charts are drawn. drawers: processes that draw
    meanwhile, from two on; 0: no charts. not_drawn: called with the charts that cannot be drawn, by title, and why; without
    it a warning says so. Raises WriteError.
    """
    from stepscope.report.charts import write
    from stepscope.report.files import write_tables
    from stepscope.report.page import merged_files, write_page

    tables = tuple(name for name in TABLE_FORMATS if name in formats)
    with _drawing(evidence, formats, drawers, drop_epochs=drop_epochs) as drawing:
        evidence, diagnosis, verdict = judged()
        written = (
            write_tables(evidence, diagnosis, folder, tables, drop_epochs=drop_epochs, verdict=verdict)
            if tables
            else ()
        )
        page: tuple[Path, ...] = ()
        if "html" in formats:
            merged = merged_files(evidence, folder)
            path = write_page(
                folder / "report.html",
                title=title,
                evidence=evidence,
                diagnosis=diagnosis,
                made_by=made_by,
                drop_epochs=drop_epochs,
                drawing=drawing,
                merged=merged,
                verdict=verdict,
            )
            page = (path, *merged.values())
        charts = write(drawing, folder) if drawing is not None and drawing.formats else ()
        if drawing is not None and drawing.missing:
            (not_drawn or _warn)(drawing.missing)
    return (*page, *written, *charts)


def _warn(missing: Mapping[str, str]) -> None:
    import warnings

    warnings.warn(in_words(missing_lines(missing)), stacklevel=4)


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Return a line for each reason with the charts that it is of."""
    reasons = grouped(missing, lambda title: missing[title])
    return [f"{counted(len(titles), 'chart')} not drawn ({listed(titles)}): {why}" for why, titles in reasons.items()]


@contextmanager
def _drawing(
    evidence: Evidence, formats: Collection[str], drawers: int, *, drop_epochs: int
) -> Iterator[Drawing | None]:
    """Begin the charts. Other processes draw while this one diagnoses, where there are cores for them."""
    if not drawers:
        yield None
        return
    from stepscope.report.charts import begin, records_of

    charted = tuple(name for name in CHART_FORMATS if name in formats)
    records = records_of(evidence, drop_epochs=drop_epochs)
    with ExitStack() as stack:
        executor = None
        if drawers > 1:
            with suppress(OSError, EOFError):  # no shared memory, no more files, no temporary folder: this one draws
                executor = stack.enter_context(side_by_side(drawers, prepared=True))
        yield begin(records, charted, executor=executor)
