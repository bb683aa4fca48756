"""``stepscope report``: charts, tables, a text and one HTML page of any results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command
from stepscope.cli.evidence import EvidenceOptions


class Report(EvidenceOptions):
    """Write an HTML page, charts, tables and a text report: all formats but PDF, or only those named by options.

    Works on what `bench`, `comm` and the profiler left, and on results of other tools; several paths make one report.
    """

    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Output folder; default: RUN/report, or ./stepscope-report/NAME for other results.",
            metavar="DIR",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace the report of other results that is in the folder.")
    ] = False
    html: Annotated[bool, typer.Option("--html", help="One self-contained HTML page.")] = False
    png: Annotated[bool, typer.Option("--png", help="Charts as PNG.")] = False
    svg: Annotated[bool, typer.Option("--svg", help="Charts as SVG.")] = False
    pdf: Annotated[bool, typer.Option("--pdf", help="Charts as PDF.")] = False
    csv: Annotated[bool, typer.Option("--csv", help="Tables as CSV, in base units.")] = False
    tex: Annotated[bool, typer.Option("--tex", help="Tables as LaTeX (booktabs).")] = False
    md: Annotated[bool, typer.Option("--md", help="Tables as Markdown.")] = False
    txt: Annotated[bool, typer.Option("--txt", help="performance_report.txt: findings first.")] = False
    datasets: Annotated[
        tuple[str, ...],
        typer.Option("--datasets", help="Only runs on these data sets.", metavar="NAME,..."),
    ] = ()
    title: Annotated[str | None, typer.Option(help="Heading of the page.", metavar="TEXT")] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with the files.")] = False


COMMAND = Command(options=Report, where="stepscope.cli.report_run", panel="Look at a job")
