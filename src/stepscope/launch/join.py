"""Joining a world that a launcher has already started, so that no second controller runs in it: RANK and WORLD_SIZE are
set, or srun started this process as one of several tasks.

Rank 0 keeps the run folder and starts the rank half as a child; every other rank becomes the rank half.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from stepscope.core.errors import MissingError, UsageError
from stepscope.core.words import in_words
from stepscope.launch.slurm import slurm_world
from stepscope.launch.torchrun import Launched
from stepscope.records.cell import GroupSpec, MeasureSettings
from stepscope.store.layout import GroupLayout
from stepscope.store.writer import make_dir, writing

SPEC_TIMEOUT_S = 300.0
CLOCK_SLACK_S = 60.0
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a rank must know to join a world: itself, its device, and where the others meet."""


def joined_world(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, world size) that a launcher has given this process; None when it was started by hand."""
    environ = world_environ(environ)
    if not environ.get("RANK") or not environ.get("WORLD_SIZE"):
        return None
    missing = [name for name in NEEDED if not environ.get(name)]
    if missing:
        present = " ".join(name for name in NEEDED if environ.get(name))
        raise UsageError(
            f"RANK and WORLD_SIZE are set, but {in_words(missing)} {'is' if len(missing) == 1 else 'are'} not",
            why="with RANK and WORLD_SIZE set, stepscope joins that world as one of its ranks, and needs all of them",
            fix=f"left over in this shell: unset {present}; set by a launcher: let it export {in_words(missing)} too",
        )
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        if not environ[name].isdigit():
            raise UsageError(
                f"{name} is {environ[name]!r}, not a number",
                fix=f"unset {' '.join(NEEDED)}, or correct your launcher",
            )
    rank, world_size = environ["RANK"], environ["WORLD_SIZE"]
    if not (rank.isdigit() and world_size.isdigit()) or int(rank) >= int(world_size):
        raise UsageError(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} contradict each other",
            why="with both set, stepscope joins that world as a worker",
            fix="unset them to let stepscope start its own ranks",
        )
    return int(rank), int(world_size)


def world_environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the variables of torch's launchers, derived from Slurm's where only srun has set its own."""
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        return environ
    return {**environ, **slurm_world(environ)}


def group_id(environ: Mapping[str, str]) -> str:
    """The same name on every rank of one world, another one for the next start of it where the launcher tells."""
    environ = world_environ(environ)
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
             "SLURM_STEP_ID")  # fmt: skip
    parts = "-".join(environ[name] for name in names if environ.get(name))
    return f"joined-{re.sub(r'[^A-Za-z0-9.-]', '_', parts)}"


def clear(files: GroupLayout) -> None:
    """Forget an earlier world of the same name; rank 0 does this before it writes anything for the others."""
    for path in (files.spec, *files.root.glob("error-*.json"), *files.root.glob("heartbeat-*")):
        path.unlink(missing_ok=True)


def nothing_to_do(group: str, run_dir: Path) -> GroupSpec:
    """A spec without cells: a rank that reads it ends at once."""
    return GroupSpec(
        group_id=group,
        run_dir=str(run_dir),
        world_size=1,
        device="cpu",
        backend="gloo",
        threads_per_rank=1,
        measure=MeasureSettings(),
        cells=(),
        cache_dir="",
    )


def start_rank_zero(files: GroupLayout) -> Launched:
    """Rank 0's rank half, as a child with this process's environment."""
    make_dir(files.root)
    with writing(files.launcher_log):
        log = files.launcher_log.open("wb")
    process = subprocess.Popen(
        _rank_half(files.spec),
        env=world_environ(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Launched(process, log)


def become_rank_half(spec: Path) -> None:
    """Wait for rank 0's spec and turn into the rank half; never returns. MissingError when no spec comes.

    A spec from before this process started is another world's; ranks of one world start within a minute.
    """
    oldest = psutil.Process().create_time() - CLOCK_SLACK_S
    limit = time.monotonic() + SPEC_TIMEOUT_S
    while not (spec.exists() and spec.stat().st_mtime >= oldest):
        if time.monotonic() > limit:
            raise MissingError(
                f"rank 0 has not written {spec} within {SPEC_TIMEOUT_S:.0f} s",
                why="all ranks read the same run folder",
                fix="pass -o DIR with a folder on a file system that all hosts share",
            )
        time.sleep(0.1)
    os.execve(sys.executable, _rank_half(spec), world_environ(os.environ))


def _rank_half(spec: Path) -> list[str]:
    return [sys.executable, "-m", "stepscope.rank", str(spec)]
