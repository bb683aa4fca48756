"""``stepscope profile``: profile steps of any training command, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options

StepOptimizer = Annotated[
    int,
    typer.Option(
        help="Of several optimizers, count the steps of the Nth, in the order of their first step.", min=1, metavar="N"
    ),
]
HangAfter = Annotated[
    str,
    typer.Option(
        help="After this long without a step, ask each rank where it waits; auto: 60 s, or longer for long steps.",
        metavar="auto|SECONDS",
    ),
]
NcclDebug = Annotated[bool, typer.Option("--nccl-debug", help="Keep NCCL's own log (NCCL_DEBUG=INFO).")]


class Window(Options):
    """What a window of profiled steps holds: of ``profile``, with a command or attached."""

    steps: Annotated[
        str,
        typer.Option(
            help="Number of steps to profile; auto: 8 to 32, more where step times vary more.", metavar="auto|N"
        ),
    ] = "auto"
    wait: Annotated[
        str, typer.Option(help="Number of steps to let pass first; auto: until step times settle.", metavar="auto|N")
    ] = "auto"
    warmup: Annotated[
        int,
        typer.Option(
            help="Number of steps that the profiler records and drops before those that count.", min=0, metavar="N"
        ),
    ] = 1
    duration: Annotated[
        float | None,
        typer.Option(
            help="For a job without an optimizer: record forward passes for this many seconds.", metavar="SECONDS"
        ),
    ] = None
    after: Annotated[
        float,
        typer.Option(
            help="With --duration: seconds from the first forward pass to the recording.", min=0, metavar="SECONDS"
        ),
    ] = 5.0
    ranks: Annotated[str | None, typer.Option(help="Profile only these ranks: 0,8 or 0-7.", metavar="N,A-B")] = None
    shapes: Annotated[
        bool,
        typer.Option(
            "--shapes/--no-shapes", help="Record tensor shapes: without them FLOP and message sizes are unknown."
        ),
    ] = True
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks (slow).")] = False
    memory: Annotated[
        bool, typer.Option("--memory", help="Record every allocation: gives memory by phase, and snapshots on a GPU.")
    ] = False
    flops: Annotated[bool, typer.Option("--flops", help="Record the profiler's own count of FLOP, too.")] = False
    modules: Annotated[bool, typer.Option("--modules", help="Mark the model's modules (adds time to each call).")] = (
        False
    )
    verdict: Annotated[
        str | None,
        typer.Option(
            help="Where to print the verdict: stdout, stderr or a file; default: the terminal, else stdout.",
            metavar="stdout|stderr|FILE",
        ),
    ] = None


class Profile(Window):
    """Time every step of any training command, unmodified, profile a few, and show where their time goes.

    stepscope profile -- torchrun --nproc-per-node 8 train.py
    """

    command: Annotated[
        list[str] | None,
        typer.Argument(help="The training command, as you would run it.", metavar="-- COMMAND...", show_default=False),
    ] = None
    attach: Annotated[
        Path | None, typer.Option(help="Profile a job that `stepscope run -o RUN` started.", metavar="RUN")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for traces and verdict; default: ./stepscope-runs/profile-NAME-TIME.",
            metavar="DIR",
        ),
    ] = None
    step_optimizer: StepOptimizer = 1
    hang_after: HangAfter = "auto"
    nccl_debug: NcclDebug = False
    nsys: Annotated[
        bool,
        typer.Option("--nsys", help="Record with Nsight Systems, one report per rank, in place of torch's profiler."),
    ] = False
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Also copy the traces into this folder, named as TensorBoard's profiler page needs them.",
            metavar="DIR",
        ),
    ] = None


COMMAND = Command(options=Profile, where="stepscope.cli.profile_run", panel="Start here", runs_a_command=True)
