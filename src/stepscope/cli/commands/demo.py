"""``stepscope demo``: the shortest way to a table of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._command import Command


def demo(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run folder.", metavar="DIR")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Train on real data lying here (MNIST), not on the synthetic set.", metavar="DIR"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False,
) -> int:
    """Train a small model in every strategy on this machine, trace it, and report: about a minute, no GPU needed."""
    from stepscope.cli.demo_run import run

    return run(output=output, data_dir=data_dir, json=json)


COMMAND = Command(run=demo, panel="Start here")
