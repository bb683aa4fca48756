"""``stepscope demo``: the shortest way to a first table of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Demo(Options):
    """Train a small model in every strategy on this machine, trace it, and report: about a minute, no GPU needed."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder; default: ./stepscope-runs/demo-TIME.", metavar="DIR"),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Train on the MNIST files in this folder, not on synthetic data.", metavar="DIR"),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False


COMMAND = Command(options=Demo, where="stepscope.cli.demo_run", panel="Start here")
