"""``stepscope run``: any training command with the hook asleep, to be profiled while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options
from stepscope.cli.commands.profile import HangAfter, NcclDebug, StepOptimizer


class Run(Options):
    """Run a training command so that `stepscope profile --attach` can profile it at any time.

    stepscope run -o RUN -- torchrun --nproc-per-node 8 train.py
    """

    command: Annotated[
        list[str], typer.Argument(help="The training command, as you would run it.", metavar="-- COMMAND...")
    ]
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder of the job, for --attach; default: ./stepscope-runs/run-NAME-TIME.",
            metavar="DIR",
        ),
    ] = None
    step_optimizer: StepOptimizer = 1
    hang_after: HangAfter = "auto"
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep the GPU allocator's history, and a snapshot at an out-of-memory error."),
    ] = False
    nccl_debug: NcclDebug = False


COMMAND = Command(options=Run, where="stepscope.cli.profile_run:run_asleep", panel="Start here", runs_a_command=True)
