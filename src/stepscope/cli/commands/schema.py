"""``stepscope schema``: JSON Schemas of every file and document."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Schema(Options):
    """The command line of ``stepscope schema``."""

    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them (run, training_run, diagnose); without it all.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None
    names: Annotated[bool, typer.Option("--list", help="Only the names.")] = False


def schema(options: Schema) -> int:
    """Print the JSON Schemas of the files in run folders and of what `--json` prints."""
    from stepscope.cli.schema_run import run

    return run(options)


COMMAND = Command(run=schema, options=Schema, panel="Reference")
