"""``stepscope hardware``: peak rates of accelerators and links, with their sources."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Hardware(Options):
    """List accelerators and links with their dense peaks, or look up one GPU.

    Rates are dense (no sparsity), matrix units with FP32 accumulation; links count one direction.
    """

    name: Annotated[
        tuple[str, ...],
        typer.Argument(
            help="A GPU as torch or nvidia-smi prints it, or a key of the table.", metavar="NAME", show_default=False
        ),
    ] = ()
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Hardware, where="stepscope.cli.hardware_run", panel="Look at a machine")
