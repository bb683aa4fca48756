"""``stepscope doctor``: what this machine is and whether it can train."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Doctor(Options):
    """Check this machine: torch, GPUs, links, network, launcher; PASS, WARN, FAIL or SKIP for each check.

    Every WARN and FAIL comes with a fix. On a machine without a GPU, the checks of GPUs are skipped.
    Under a launcher, local rank 0 reports for its host. --quick trains for some seconds and takes under half a minute.
    """

    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 6 when a check fails.")] = False
    torch_timeout: Annotated[
        float, typer.Option(help="Timeout for importing torch, in seconds.", metavar="SECONDS", min=1)
    ] = 60.0
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Train for a few seconds instead: each rank's own time, stragglers, the collective.",
        ),
    ] = False
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks of --quick; default: all GPUs, or 2 on the CPU.", metavar="N", min=1),
    ] = None


COMMAND = Command(
    options=Doctor,
    where=lambda options: "stepscope.cli.doctor_run" + (":run_quick" if options.quick else ""),
    panel="Look at a machine",
)
