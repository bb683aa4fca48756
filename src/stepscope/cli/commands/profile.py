"""``stepscope profile``: profile steps of any training command, unmodified."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch

STEP_OPTIMIZER = option(
    "Of several optimizers, count the steps of the Nth, in the order of their first step.", "N", default=1, min=1
)
HANG_AFTER = option(
    "After this long without a step, ask each rank where it waits; auto: 60 s, or longer for long steps.",
    "auto|SECONDS",
    default="auto",
)
NCCL_DEBUG = switch("Keep NCCL's own log (NCCL_DEBUG=INFO).")
VERDICT = option(
    "Where to print the verdict: stdout, stderr or a file; default: the terminal, else stdout.", "stdout|stderr|FILE"
)

FAIL_IF = option(
    "Exit 6 when the job ended with 0 and this holds, as `diagnose --fail-if`: 'input > 20 %'.", "CONDITION", default=()
)


class Window(Options):
    """What a window of profiled steps holds: of ``profile``, with a command or attached."""

    steps: str = option(
        "Number of steps to profile; auto: 8 to 32, more where step times vary more.", "auto|N", default="auto"
    )
    wait: str = option("Number of steps to let pass first; auto: until step times settle.", "auto|N", default="auto")
    warmup: int = option(
        "Number of steps that the profiler records and drops before those that count.", "N", default=1, min=0
    )
    duration: float | None = option(
        "For a job without an optimizer: record forward passes for this many seconds.",
        "SECONDS",
        without="steps wait step_optimizer",
    )
    after: float = option(
        "With --duration: seconds from the first forward pass to the recording.",
        "SECONDS",
        default=5.0,
        min=0,
        needs="duration",
    )
    ranks: str | None = option("Profile only these ranks: 0,8 or 0-7.", "N,A-B")
    shapes: bool | None = option(
        "Record tensor shapes in all steps, or in none; default: in two more steps, whose times do not count.",
        None,
        "--shapes/--no-shapes",
        default=None,
    )
    stacks: bool = switch("Record Python stacks (slow).")
    memory: bool = switch("Record every allocation: gives memory by phase, and snapshots on a GPU.")
    flops: bool = switch("Record the profiler's own count of FLOP, too.")
    modules: bool = switch("Mark the model's modules (adds time to each call).")
    tables: bool = switch("Also print the window's tables, as `stepscope trace RUN` does.")
    verdict: str | None = VERDICT
    fail_if: tuple[str, ...] = FAIL_IF


class Profile(Window):
    """Time every step of any training command, unmodified, profile a few, and show where their time goes.

    stepscope profile -- torchrun --nproc-per-node 8 train.py
    """

    command: list[str] | None = argument("The training command, as you would run it.", "-- COMMAND...", default=None)
    attach: Path | None = option(
        "Profile a job that `stepscope run -o RUN` started.",
        "RUN",
        without="output nccl_debug step_optimizer duration after nsys hang_after",  # `stepscope run` has chosen these
    )
    output: Path | None = option(
        "Folder for traces and verdict; default: ./stepscope-runs/profile-NAME-TIME.", "DIR", "-o"
    )
    step_optimizer: int = STEP_OPTIMIZER
    hang_after: str = HANG_AFTER
    nccl_debug: bool = NCCL_DEBUG
    nsys: bool = switch(
        "Record with Nsight Systems, one report per rank, in place of torch's profiler.",
        without="shapes stacks memory flops modules tensorboard after duration",
    )
    tensorboard: Path | None = option(
        "Also copy the traces into this folder, named as TensorBoard's profiler page needs them.", "DIR"
    )


COMMAND = Command(options=Profile, where="stepscope.cli.profile_run", panel="Start here", runs_a_command=True)
