"""A dry run: the program of a rank, started once for each world that is asked for, as a launcher would start its rank 0.

The hook in it (``hook/stepscope_dry``) takes the place of GPUs and other ranks, and ends it after the step that is recorded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from stepscope import __version__
from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError, StepscopeError, UsageError
from stepscope.core.forks import stop_signals_raise, usable_cores
from stepscope.launch.hooked_job import HOOK, check_program
from stepscope.launch.training_command import RankProgram, rank_program
from stepscope.machine.peaks import Accelerator
from stepscope.records.dry_run import DryFailure, DryRank, DryRun
from stepscope.store.layout import DryLayout
from stepscope.store.reader import read_bytes, read_if_there
from stepscope.store.writer import make_dir, write_record, writing

TIMEOUT_S = 600.0
"""What one rank may take to its second step."""
POLL_S = 0.05
GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL."""
LINES = 12
"""Last lines of what a script printed that are shown where it failed."""
_ACCELERATE = """\
import json, os, sys
before = dict(os.environ)
from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env
words = [*sys.argv[2:], "--num_processes", sys.argv[1], *(["--multi_gpu"] if sys.argv[1] != "1" else []), "train.py"]
args, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
args.num_processes, args.main_process_port, args.num_machines = int(sys.argv[1]), 0, 1
print(json.dumps({k: v for k, v in prepare_multi_gpu_env(args).items() if before.get(k) != v}))
"""
"""What `accelerate launch` itself makes of its options and its configuration, as variables of the ranks."""


@record
class DrySettings:
    """gpu: that the script is told it runs on. batch_from: a file with the first batch; None: of the script's loader.
    timeout_s: what one rank may take."""

    gpu: Accelerator
    batch_from: Path | None = None
    timeout_s: float = TIMEOUT_S


def dry_run(
    layout: DryLayout, run: DryRun, settings: DrySettings, *, tell: Callable[[str], None] = lambda _: None
) -> DryRun:
    """Run the script of ``run.command`` once for each world, and once for each further stage of a pipeline; write what it
    records and why it did not below the folder, and return the record with the failures.

    tell: told of each rank as it ends. Ctrl-C ends all that was started. Raises StepscopeError where nothing can be started.
    """
    program = rank_program(run.command)
    check_program(program.words)
    if settings.batch_from is not None and not settings.batch_from.is_file():
        raise UsageError(f"--batch-from {settings.batch_from}: no such file")
    per_node = run.ranks_per_node or program.ranks or settings.gpu.node
    run = replace(run, ranks_per_node=per_node)
    if layout.root.exists() and (not layout.root.is_dir() or any(layout.root.iterdir())):
        raise UsageError(f"{layout.root} exists and is not an empty folder", fix="choose another folder with -o DIR")
    make_dir(layout.control)
    write_record(layout.record, run)
    waiting = [(world, 0) for world in run.gpus]
    failures: list[DryFailure] = []
    with ExitStack() as stack:
        stack.enter_context(stop_signals_raise("the dry run was stopped"))
        running: list[_Rank] = []
        stack.callback(lambda: [rank.stop() for rank in running])
        while waiting or running:
            while waiting and len(running) < min(2, usable_cores()):
                running.append(_Rank(layout, program, run, settings, *waiting.pop(0)))
            time.sleep(POLL_S)
            for rank in [rank for rank in running if rank.ended]:
                running.remove(rank)
                outcome = rank.outcome()
                tell(_told(rank, outcome))
                if isinstance(outcome, DryFailure):
                    failures.append(outcome)
                elif not rank.rank:
                    stages = {int(of) for of in _stages(outcome.pipeline)} - {0}
                    waiting[:0] = [(rank.world, stage) for stage in sorted(stages)]
    run = replace(run, failures=tuple(sorted(failures, key=lambda failure: (failure.world_size, failure.rank))))
    write_record(layout.record, run)
    return run
