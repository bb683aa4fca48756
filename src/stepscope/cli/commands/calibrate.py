"""``stepscope calibrate``: alpha, beta and curves of the collectives that ``stepscope comm`` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Calibrate(Options):
    """The command line of ``stepscope calibrate``."""

    run: Annotated[Path, typer.Argument(help="Run folder of `stepscope comm`.", metavar="RUN", show_default=False)]
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write; without it RUN/calib.json.", metavar="FILE"),
    ] = None
    charts: Annotated[
        bool, typer.Option("--charts", help="Also draw predicted against measured (PNG) into RUN/report.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print the calibration as one JSON document.")] = False


def calibrate(options: Calibrate) -> int:
    """Fit what collectives cost on this machine: latency, rate, and a curve where no straight line holds.

    The result, calib.json, is what predictions of collectives and steps are made from.
    """
    from stepscope.cli.calibrate_run import run

    return run(options)


COMMAND = Command(run=calibrate, options=Calibrate, panel="Predict")
