"""``stepscope profile``: profile steps of any training command, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options

StepOptimizer = Annotated[
    int, typer.Option(help="Optimizer whose steps count, numbered by first step.", min=1, metavar="N")
]
HangAfter = Annotated[
    str,
    typer.Option(
        help="Without a step for so long, ranks are asked where they are; auto: 60 s, or longer for long steps.",
        metavar="auto|SECONDS",
    ),
]
NcclDebug = Annotated[bool, typer.Option("--nccl-debug", help="Keep NCCL's own log (NCCL_DEBUG=INFO).")]


class Window(Options):
    """What a window of profiled steps holds: of ``profile``, with a command or attached."""

    steps: Annotated[
        str,
        typer.Option(help="Steps to profile; auto: 8 to 32, by how much step times spread.", metavar="auto|N"),
    ] = "auto"
    wait: Annotated[
        str, typer.Option(help="Steps before the window; auto: until step times settle.", metavar="auto|N")
    ] = "auto"
    warmup: Annotated[int, typer.Option(help="Steps recorded before the window and dropped.", min=0)] = 1
    duration: Annotated[
        float | None,
        typer.Option(
            help="For a job without an optimizer: record forward passes for this many seconds.", metavar="SECONDS"
        ),
    ] = None
    after: Annotated[
        float, typer.Option(help="With --duration: seconds from the first forward pass to the window.", min=0)
    ] = 5.0
    ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8 or 0-7.", metavar="N,A-B")] = None
    shapes: Annotated[bool, typer.Option("--shapes/--no-shapes", help="Record shapes: FLOP and sizes need them.")] = (
        True
    )
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks (slow).")] = False
    memory: Annotated[
        bool, typer.Option("--memory", help="Record every allocation: memory by phase and snapshots.")
    ] = False
    flops: Annotated[bool, typer.Option("--flops", help="Let the profiler also count FLOP.")] = False
    modules: Annotated[bool, typer.Option("--modules", help="Mark the model's modules (adds time to each call).")] = (
        False
    )
    verdict: Annotated[
        str | None,
        typer.Option(
            help="Where the verdict goes: stdout, stderr or a file; without it where the terminal is, else stdout.",
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the traces.", metavar="DIR")] = None
    step_optimizer: StepOptimizer = 1
    hang_after: HangAfter = "auto"
    nccl_debug: NcclDebug = False
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Record with Nsight Systems, around each rank, in place of torch's profiler.")
    ] = False
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also copy the traces for TensorBoard's profiler page.", metavar="DIR")
    ] = None


COMMAND = Command(options=Profile, where="stepscope.cli.profile_run", panel="Start here", runs_a_command=True)
