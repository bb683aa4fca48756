"""Joining a world that a launcher has already started, so that no second controller runs in it: RANK and WORLD_SIZE are
set, or srun started this process as one of several tasks.

Rank 0 keeps the run folder and starts the rank half as a child; every other rank becomes the rank half. A launcher that
starts a world again may give it the same name and folder, so no rank trusts what it finds there: each writes a nonce of its
own, and the spec names the nonces of the ranks that it is for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import DataError, MissingError, UsageError
from stepscope.core.words import in_words
from stepscope.launch.slurm import slurm_world
from stepscope.launch.torchrun import Launched
from stepscope.records.cell import GroupSpec, MeasureSettings
from stepscope.store.layout import GroupLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import make_dir, write_bytes, writing

MEET_TIMEOUT_S = 300.0
LOOK_S = 0.1
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
    stale = ("error-*.json", "heartbeat-*", "joining-*")
    for path in (files.spec, *(path for pattern in stale for path in files.root.glob(pattern))):
        path.unlink(missing_ok=True)


def gather(files: GroupLayout, world_size: int, *, patience_s: float = MEET_TIMEOUT_S) -> tuple[str, ...]:
    """The nonces of ranks 1, 2, ... of this world, for its spec; call it on rank 0, after ``clear``.

    Raises MissingError naming the ranks that have not come within ``patience_s``; with 0 their nonces are empty.
    """
    limit = time.monotonic() + patience_s
    while True:
        nonces = tuple(_read(files.joining(rank)) or "" for rank in range(1, world_size))
        if all(nonces) or not patience_s:
            return nonces
        if time.monotonic() > limit:
            absent = [str(rank) for rank, nonce in enumerate(nonces, start=1) if not nonce]
            raise MissingError(
                f"{'rank' if len(absent) == 1 else 'ranks'} {in_words(absent)} of {world_size} did not come to "
                f"{files.root} within {patience_s:.0f} s",
                why="all ranks read the same run folder",
                fix="pass -o DIR with a folder on a file system that all hosts share, or see why they did not start",
            )
        time.sleep(LOOK_S)


def nothing_to_do(group: str, run_dir: Path, members: tuple[str, ...]) -> GroupSpec:
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
        members=members,
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


def become_rank_half(files: GroupLayout, rank: int) -> None:
    """Wait for the spec that is for this rank and turn into the rank half; never returns. MissingError when none comes."""
    join(files, rank)
    os.execve(sys.executable, _rank_half(files.spec), world_environ(os.environ))


def join(files: GroupLayout, rank: int, *, patience_s: float = MEET_TIMEOUT_S) -> GroupSpec:
    """The spec of the world that this process is rank ``rank`` of, once rank 0 has written it.

    Raises MissingError when none comes, or when another process takes this rank's place in the folder.
    """
    nonce = uuid.uuid4().hex
    mine = files.joining(rank)
    known = False
    limit = time.monotonic() + patience_s
    while True:
        with suppress(DataError):  # of another version, or cleared while it is read: not the one that is awaited
            spec = read_if_there(files.spec, GroupSpec)
            if spec is not None and nonce in spec.members:
                return spec
        found = _read(mine)
        if found is None or not known:
            if files.root.is_dir():  # rank 0 makes it, in a run folder that is empty or a run's, and clears it
                write_bytes(mine, nonce.encode())
                known = True
        elif found != nonce:
            raise MissingError(
                f"another process joins {files.root} as rank {rank}",
                why="the world was started again in the same run folder, or two worlds use it",
                fix="end this one, or give each its own folder: -o DIR",
            )
        if time.monotonic() > limit:
            raise MissingError(
                f"rank 0 has not written {files.spec} for this rank within {patience_s:.0f} s",
                why="all ranks read the same run folder",
                fix="pass -o DIR with a folder on a file system that all hosts share",
            )
        time.sleep(LOOK_S)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:  # not there, or replaced while a shared file system looks
        return None


def _rank_half(spec: Path) -> list[str]:
    return [sys.executable, "-m", "stepscope.rank", str(spec)]
