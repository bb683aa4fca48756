"""``stepscope run``: any training command, watched from its first step to its last."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.cli.commands.export import TO
from stepscope.cli.commands.profile import FAIL_IF, HANG_AFTER, NCCL_DEBUG, STEP_OPTIMIZER, VERDICT


class Run(Options):
    """Run a training command, watch every step of every rank, and say what takes the time as soon as it is known.

    stepscope run -- torchrun --nproc-per-node 8 train.py
    """

    command: list[str] = argument("The training command, as you would run it.", "-- COMMAND...")
    output: Path | None = option(
        "Folder of the job, for --attach; default: ./stepscope-runs/run-NAME-TIME.", "DIR", "-o"
    )
    join: bool = switch(
        "Take part in the job of -o, which `stepscope run` starts on another host.", only="output command"
    )
    monitor: bool = option(
        "Time every step; without, only wait for `profile --attach`.",
        None,
        "--monitor/--no-monitor",
        default=True,
        without="hang_after verdict export fail_if deep notify",
    )
    step_optimizer: int = STEP_OPTIMIZER
    hang_after: str = HANG_AFTER
    deep: str = option(
        "Profile a few steps where the verdict names a rank, a part or a kind of step: auto (to 64 ranks), on or off.",
        "WHEN",
        default="auto",
    )
    memory: bool = switch("Keep the GPU allocator's history, and a snapshot at an out-of-memory error.")
    nccl_debug: bool = NCCL_DEBUG
    verdict: str | None = VERDICT
    fail_if: tuple[str, ...] = FAIL_IF
    export: tuple[str, ...] = option(TO, "KIND:PLACE", default=())
    notify: tuple[str, ...] = option(
        "Report a new verdict, a hang, a crash: POST to a URL, slack:URL, or a command that reads JSON; may be repeated.",
        "URL|COMMAND",
        default=(),
    )


COMMAND = Command(options=Run, where="stepscope.cli.monitor_run", panel="Start here", runs_a_command=True)
