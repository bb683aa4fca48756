"""``stepscope schema``: JSON Schemas of every file and document."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Schema(Options):
    """Print the JSON Schemas of the files in run folders and of what `--json` prints."""

    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them (run, training_run, diagnose); without it all.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None
    names: Annotated[bool, typer.Option("--list", help="Only the names.")] = False


COMMAND = Command(options=Schema, where="stepscope.cli.schema_run", panel="Reference")
