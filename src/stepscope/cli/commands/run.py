"""``stepscope run``: any training command with the hook asleep, to be profiled while it runs."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.cli.commands.profile import HANG_AFTER, NCCL_DEBUG, STEP_OPTIMIZER


class Run(Options):
    """Run a training command so that `stepscope profile --attach` can profile it at any time.

    stepscope run -o RUN -- torchrun --nproc-per-node 8 train.py
    """

    command: list[str] = argument("The training command, as you would run it.", "-- COMMAND...")
    output: Path | None = option(
        "Folder of the job, for --attach; default: ./stepscope-runs/run-NAME-TIME.", "DIR", "-o"
    )
    step_optimizer: int = STEP_OPTIMIZER
    hang_after: str = HANG_AFTER
    memory: bool = switch("Keep the GPU allocator's history, and a snapshot at an out-of-memory error.")
    nccl_debug: bool = NCCL_DEBUG


COMMAND = Command(options=Run, where="stepscope.cli.profile_run:run_asleep", panel="Start here", runs_a_command=True)
