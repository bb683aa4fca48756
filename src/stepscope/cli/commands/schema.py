"""``stepscope schema``: JSON Schemas of every file and document."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Schema(Options):
    """Print the JSON Schemas of the files in run folders and of the documents that `--json` prints."""

    name: Annotated[
        str | None,
        typer.Argument(
            help="One schema (run, training_run, diagnose); default: all.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None
    names: Annotated[bool, typer.Option("--list", help="Only the names.")] = False


COMMAND = Command(options=Schema, where="stepscope.cli.schema_run", panel="Reference")
