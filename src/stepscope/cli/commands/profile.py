"""``stepscope profile``: steps of any training command, unchanged, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.command import Command, Options


class Window(Options):
    """What a window of profiled steps holds: of ``profile``, with a command or attached."""

    steps: Annotated[int, typer.Option(help="Steps to profile.", min=1)] = 3
    wait: Annotated[
        str, typer.Option(help="Steps before them; auto: until step times have settled.", metavar="auto|N")
    ] = "auto"
    warmup: Annotated[int, typer.Option(help="Steps with the profiler on that are not kept.", min=0)] = 1
    duration: Annotated[
        float | None,
        typer.Option(help="For a job without an optimizer: seconds of forward passes.", metavar="SECONDS"),
    ] = None
    after: Annotated[
        float, typer.Option(help="With --duration: seconds from the first forward pass to the window.", min=0)
    ] = 5.0
    ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8 or 0-7.", metavar="N,A-B")] = None
    shapes: Annotated[bool, typer.Option("--shapes/--no-shapes", help="Record shapes: FLOP and sizes need them.")] = (
        True
    )
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python stacks (slow).")] = False
    memory: Annotated[bool, typer.Option("--memory", help="Record every allocation.")] = False
    flops: Annotated[bool, typer.Option("--flops", help="Let the profiler count FLOP, too.")] = False
    modules: Annotated[bool, typer.Option("--modules", help="Mark the model's modules (adds time a call).")] = False


class Profile(Window):
    """Profile a few steps of any training command, unchanged, and show where their time goes.

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
    step_optimizer: Annotated[
        int, typer.Option(help="Which optimizer's steps count, in the order of their first step.", min=1, metavar="N")
    ] = 1
    nccl_debug: Annotated[bool, typer.Option("--nccl-debug", help="Keep NCCL's own log (NCCL_DEBUG=INFO).")] = False
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also copy the traces for TensorBoard's profiler page.", metavar="DIR")
    ] = None


COMMAND = Command(options=Profile, where="stepscope.cli.profile_run", panel="Start here", runs_a_command=True)
