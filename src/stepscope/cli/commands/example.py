"""``stepscope example``: job folders to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Example(Options):
    """Write small generated job folders, each with one known problem, and print the commands that find it.

    Takes a few seconds and needs neither torch nor a GPU. Nothing is measured: `stepscope demo` measures this machine.
    """

    directory: Annotated[Path, typer.Argument(help="Folder to write the jobs into.", metavar="DIR", show_default=False)]
    inject: Annotated[
        tuple[str, ...],
        typer.Option(
            help="Also a job of 8 ranks with this fault: slow_rank=2:30% or loader. Repeatable.",
            metavar="FAULT[=AMOUNT]",
        ),
    ] = ()


COMMAND = Command(options=Example, where="stepscope.cli.example_run", panel="Start here")
