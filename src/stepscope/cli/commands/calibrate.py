"""``stepscope calibrate``: what collectives cost, and how far measured steps are from the step model's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Calibrate(Options):
    """Fit what collectives cost on this machine: latency, rate, and a curve where no straight line holds.

    From a profiled job: the fit is to the job's own collectives, which need four different sizes. From a table of measured
    training runs (csv): factors that correct the step model for that GPU. The result, calib.json, is for `--calib` of
    `predict` and `plan`.
    """

    run: Annotated[
        Path,
        typer.Argument(
            help="Run folder of `stepscope comm` or of `stepscope profile`, or a table of training runs (csv).",
            metavar="RUN|CSV",
            show_default=False,
        ),
    ]
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Output file; default: RUN/calib.json.", metavar="FILE"),
    ] = None
    charts: Annotated[
        bool, typer.Option("--charts", help="Also draw predicted beside measured times (PNG) into RUN/report.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print the calibration as one JSON document.")] = False


COMMAND = Command(options=Calibrate, where="stepscope.cli.calibrate_run", panel="Predict")
