"""``stepscope report``: charts, tables, a text and one HTML page of any results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._command import Command
from stepscope.cli.evidence_arguments import ANY_RESULTS, Cell, DropEpochs, Scaling, TargetAccuracy, WorldSize


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help=ANY_RESULTS,
            metavar="PATHS",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Folder to write to; without it RUN/report, and ./stepscope-report/NAME for other results.",
            metavar="DIR",
        ),
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="One self-contained HTML page.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Charts as PNG.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Charts as SVG.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Tables as CSV, in base units.")] = False,
    tex: Annotated[bool, typer.Option("--tex", help="Tables as LaTeX (booktabs).")] = False,
    md: Annotated[bool, typer.Option("--md", help="Tables as Markdown.")] = False,
    txt: Annotated[bool, typer.Option("--txt", help="performance_report.txt: findings first.")] = False,
    world_size: WorldSize = None,
    scaling: Scaling = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option("--datasets", help="Only runs on these data sets (A,B or again).", metavar="NAME"),
    ] = None,
    target_accuracy: TargetAccuracy = None,
    drop_epochs: DropEpochs = 1,
    cell: Cell = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with the files.")] = False,
) -> int:
    """Write charts, tables, a text report and an HTML page; every format, unless some are named.

    Works on what `bench`, `comm` and the profiler left, and on results of other tools; several paths make one report.
    """
    from stepscope.cli.evidence_options import EvidenceOptions
    from stepscope.cli.report_run import ALL_FORMATS, Request, run

    asked = {"html": html, "png": png, "svg": svg, "csv": csv, "tex": tex, "md": md, "txt": txt}
    return run(
        Request(
            evidence=EvidenceOptions(
                paths=tuple(paths),
                world_size=world_size,
                scaling=scaling,
                drop_epochs=drop_epochs,
                cell=cell,
                target_accuracy=target_accuracy,
            ),
            output=output,
            formats=frozenset(name for name, wanted in asked.items() if wanted) or ALL_FORMATS,
            datasets=tuple(name for text in datasets or () for name in text.split(",") if name.strip()),
            title=title,
            json=json,
        )
    )


COMMAND = Command(run=report, panel="Look at a job")
