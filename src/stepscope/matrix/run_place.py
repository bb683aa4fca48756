"""Where a measuring command runs: its run folder, and the world that a launcher may have started around it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stepscope.core.errors import ExitCode, UsageError
from stepscope.launch.join import become_rank_half, group_id, joined_world, world_environ
from stepscope.matrix.run_folder import read_statuses
from stepscope.records.run import Status
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_run
from stepscope.store.writer import WriteError

RUNS = Path("stepscope-runs")
NAME_CHARS = 40
LAUNCHER_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.launcher", "torchrun")
"""Modules that start others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """group: id of the worker group when the ranks exist already, None when this command starts them.

    cores_factor: hosts of such a world.
    """

    layout: RunLayout
    group: str | None
    cores_factor: int


def default_run_dir(name: str) -> Path:
    """``stepscope-runs/NAME-YYYYMMDD-HHMMSS`` in the current folder."""
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def name_of_command(command: Sequence[str]) -> str:
    """What a training command is called: its script or module without folders, else its program."""
    scripts = [word for word in command if word.endswith(".py")]
    modules = [word for before, word in pairwise(command) if before == "-m" and not word.startswith(LAUNCHER_MODULES)]
    word = Path(scripts[0]).stem if scripts else modules[0].rpartition(".")[2] if modules else Path(command[0]).name
    return re.sub(r"[^\w.-]+", "-", word)[:NAME_CHARS].strip("-.") or "job"


def take_place(output: Path | None, *, name: str, env_source: str, env: tuple[str, ...]) -> RunPlace:
    """The run folder of this command. Inside a started world, ranks other than 0 turn into the rank half: no return.

    env_source, env: option that sets environment variables, and those it sets: they come too late for ranks that exist.
    """
    joined = joined_world(os.environ)
    if joined is not None and output is None:
        raise UsageError(
            "no run folder is given, and a launcher started this world",
            why="every rank needs the same run folder",
            fix="add -o DIR on a file system that all hosts share, or start the command outside srun and torchrun",
        )
    layout = RunLayout(output or default_run_dir(name))
    if joined is None:
        return RunPlace(layout=layout, group=None, cores_factor=1)
    group = group_id(os.environ)
    if joined[0] != 0:
        become_rank_half(layout.group(group), joined[0])
    if env:
        raise UsageError(
            f"{env_source} ({', '.join(sorted(env))}) cannot be set: the ranks exist already",
            fix=f"export these variables in your launcher and leave {env_source} out",
        )
    return RunPlace(layout=layout, group=group, cores_factor=_hosts(joined[1]))


def _hosts(world_size: int) -> int:
    local = world_environ(os.environ).get("LOCAL_WORLD_SIZE", "")
    return max(1, world_size // int(local)) if local.isdigit() and int(local) >= 1 else 1


def stopped_by_the_disk(layout: RunLayout, error: WriteError) -> WriteError:
    """The same error with what becomes of the run; as it is where no run has begun yet."""
    run = read_run(layout.root) if layout.run.exists() else None
    if run is None:
        return error
    statuses = read_statuses(layout, run.cells)
    finished = sum(status.status == "ok" for status in statuses.values())
    return WriteError(
        error.what,
        why=error.why,
        fix=f"free some space and run the same command with `-o {layout.root}`: {finished} of {len(run.cells)} cells "
        "are finished and saved there, only the rest will run",
    )


def exit_code(statuses: Iterable[Status]) -> int:
    """0: everything that can run here has a result. 4: some failed. 5: none succeeded. 3: none can run here."""
    found = set(statuses)
    failed = bool(found - {"ok", "unsupported", "skipped"})
    if "ok" in found:
        return ExitCode.SOME_CELLS_FAILED if failed else ExitCode.OK
    return ExitCode.ALL_CELLS_FAILED if failed else ExitCode.ENVIRONMENT
