"""``stepscope report``: charts, tables, a text and one HTML page of any results."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, option, switch
from stepscope.cli.evidence import EvidenceOptions


class Report(EvidenceOptions):
    """Write an HTML page, charts, tables and a text report: all formats but PDF, or only those named by options.

    Works on what `bench`, `comm` and the profiler left, and on results of other tools; several paths make one report.
    """

    output: Path | None = option(
        "Output folder; default: RUN/report, or ./stepscope-report/NAME for other results.", "DIR", "-o"
    )
    force: bool = switch("Replace the report of other results that is in the folder.")
    html: bool = switch("One self-contained HTML page.")
    png: bool = switch("Charts as PNG.")
    svg: bool = switch("Charts as SVG.")
    pdf: bool = switch("Charts as PDF.")
    csv: bool = switch("Tables as CSV, in base units.")
    tex: bool = switch("Tables as LaTeX (booktabs).")
    md: bool = switch("Tables as Markdown.")
    txt: bool = switch("performance_report.txt: findings first.")
    datasets: tuple[str, ...] = option("Only runs on these data sets.", "NAME,...", default=())
    title: str | None = option("Heading of the page.", "TEXT")
    json: bool = switch("Print one JSON document, with the files.")


COMMAND = Command(options=Report, where="stepscope.cli.report_run", panel="Look at a job")
