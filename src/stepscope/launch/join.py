"""Joining a world that a launcher has already started, so that no second controller runs in it: RANK and WORLD_SIZE are
set, or srun or mpirun started this process as one of several.

Rank 0 keeps the run folder and starts the rank half as a child; every other rank becomes the rank half. A launcher
that starts a world again may give it the same name and folder, so no rank trusts what it finds there: each writes a
nonce of its own, and the spec names the nonces of the ranks that it is for.

A world that srun or mpirun describes is put into the variables by which torch's launchers describe one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import DataError, MissingError, UsageError
from stepscope.core.words import in_words
from stepscope.launch.hosts.peers import interface_of
from stepscope.launch.mpi_world import mpi_world
from stepscope.launch.ports import FIRST_PORT, PORTS, free_port
from stepscope.launch.torchrun import Launched
from stepscope.records.cell import GroupSpec, MeasureSettings
from stepscope.store.layout import GroupLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import make_dir, write_bytes, writing

_SCONTROL_TIMEOUT_S = 10.0
_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")


def slurm_world(environ: Mapping[str, str], *, address: Callable[[str], str] | None = None) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a task of srun.

    Empty outside a step of several tasks, as in a batch script itself. ``address``: of a host by its name. Raises
    UsageError where the variables contradict each other, MissingError where rank 0's host cannot be found.
    """
    if not environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return {}
    odd = [name for name in _STEP if not environ.get(name, "").isdigit()]
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    if odd or not hosts:
        raise UsageError(
            f"srun started this task, but {(odd or ['SLURM_STEP_NODELIST'])[0]} is not set or not a number",
            fix="run the command with srun, with the environment that srun sets",
        )
    step, tasks, rank, local, job = (int(environ[name]) for name in _STEP)
    if rank >= tasks:
        raise UsageError(f"SLURM_PROCID={rank} and SLURM_STEP_NUM_TASKS={tasks} contradict each other")
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = environ.get("SLURM_NODEID", "")
    here = per_node[int(node)] if node.isdigit() and int(node) < len(per_node) else None
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": str(local),
        **({} if here is None else {"LOCAL_WORLD_SIZE": str(here)}),
        "MASTER_ADDR": (address or _resolved_address)(first_host(hosts)),
        # By job and step, so that jobs that share a host rarely meet.
        "MASTER_PORT": environ.get("MASTER_PORT") or str(FIRST_PORT + (job + step) % PORTS),
    }


def first_host(nodelist: str) -> str:
    """Return the first name of Slurm's host list: ``gpu[007-009,12],login1`` -> ``gpu007``."""
    name = re.match(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name[0] if name else "")


def tasks_per_node(text: str) -> list[int]:
    """Read SLURM_STEP_TASKS_PER_NODE by node: ``4(x2),3`` -> [4, 4, 3]; empty where it cannot be read."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _resolved_address(host: str) -> str:
    """Return the name where it resolves, else the address that Slurm knows; never localhost: each host takes it for
    itself."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pass
    else:
        return host
    try:
        line = ["scontrol", "show", "node", host, "--oneliner"]
        answer = subprocess.run(line, capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    match = re.search(r"\bNodeAddr=(\S+)", answer)
    if match is None:
        raise MissingError(
            f"the address of {host}, where rank 0 runs, is unknown",
            why="its name does not resolve, and `scontrol show node` gives no NodeAddr",
            fix="export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each task",
        )
    return match[1]


MEET_TIMEOUT_S = 300.0
LOOK_S = 0.1
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a rank must know to join a world: itself, its device, and where the others meet."""


def joined_world(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the (rank, world size) that a launcher has given this process, or None when it was started by hand."""
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
                f"{name} is {environ[name]!r}, not a number", fix=f"unset {' '.join(NEEDED)}, or correct your launcher"
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
    """Return the environment with the variables of torch's launchers (Ray Train sets them, too), derived from those of
    mpirun or srun where only it has set its own. mpirun comes first: on other hosts srun starts its daemons, which is no
    world."""
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        return environ
    mpi = mpi_world(environ, first_host=lambda hosts: _resolved_address(first_host(hosts)))
    return {**environ, **(mpi or slurm_world(environ))}


def rank_zero_port(environ: Mapping[str, str]) -> int | None:
    """Return the port where the ranks of a joined world meet on this host, rank 0's: by its job, or the next that is free.

    None where the launcher names a port: others, or its own store, may count on it.
    """
    if environ.get("MASTER_PORT"):
        return None
    return free_port(int(world_environ(environ)["MASTER_PORT"]))


SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def with_interface(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank of this world, with the interface that leads to rank 0 where hosts are several.

    gloo takes the interface of the host's own name, which Debian and its like resolve to 127.0.1.1: ranks of other hosts
    would call themselves. What is set already is kept, and nothing is set where only loopback is found.
    """
    variables = dict(world_environ(environ))
    if variables.get("LOCAL_WORLD_SIZE", variables.get("WORLD_SIZE")) == variables.get("WORLD_SIZE"):
        return variables
    name = _interface_to(variables.get("MASTER_ADDR", ""))
    return variables if name is None else {**dict.fromkeys(SOCKETS, name), **variables}


def _interface_to(host: str) -> str | None:
    """Return the network interface by which this host reaches ``host``, itself included; None where it is loopback or
    unknown."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
        return None if own.startswith("127.") else interface_of(own)
    return None


def group_id(environ: Mapping[str, str]) -> str:
    """Return a name that is the same on every rank of one world, and another for its next start where the launcher tells."""
    environ = world_environ(environ)
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
             "SLURM_STEP_ID", "PMIX_NAMESPACE", "RAY_JOB_ID")  # fmt: skip
    parts = "-".join(environ[name] for name in names if environ.get(name))
    return f"joined-{re.sub(r'[^A-Za-z0-9.-]', '_', parts)}"


def clear(files: GroupLayout) -> None:
    """Forget an earlier world of the same name; rank 0 does this before it writes anything for the others."""
    stale = ("error-*.json", "heartbeat-*", "joining-*")
    for path in (files.spec, *(path for pattern in stale for path in files.root.glob(pattern))):
        path.unlink(missing_ok=True)


def gather(files: GroupLayout, world_size: int, *, patience_s: float = MEET_TIMEOUT_S) -> tuple[str, ...]:
    """Collect the nonces of ranks 1, 2, ... of this world, for its spec; call it on rank 0, after ``clear``.

    Raises MissingError naming the ranks that have not come within ``patience_s``; with 0 their nonces are empty.
    """
    limit = time.monotonic() + patience_s
    while True:
        nonces = tuple(_text_or_none(files.joining(rank)) or "" for rank in range(1, world_size))
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
    """Return a spec without cells: a rank that reads it ends at once."""
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
    """Start rank 0's rank half, as a child with this process's environment."""
    make_dir(files.root)
    with writing(files.launcher_log):
        log = files.launcher_log.open("wb")
    process = subprocess.Popen(
        _rank_half(files.spec),
        env=with_interface(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Launched(process, log)


def become_rank_half(files: GroupLayout, rank: int) -> None:
    """Wait for the spec that is for this rank and turn into the rank half; never returns. Raises MissingError when none
    comes."""
    join(files, rank)
    os.execve(sys.executable, _rank_half(files.spec), with_interface(os.environ))


def join(files: GroupLayout, rank: int, *, patience_s: float = MEET_TIMEOUT_S) -> GroupSpec:
    """Return the spec of the world that this process is rank ``rank`` of, once rank 0 has written it.

    Raises MissingError when none comes, or when another process takes this rank's place in the folder.
    """
    nonce = uuid.uuid4().hex
    own_file = files.joining(rank)
    written = False
    limit = time.monotonic() + patience_s
    while True:
        with suppress(DataError):  # of another version, or cleared while it is read: not the one that is awaited
            spec = read_if_there(files.spec, GroupSpec)
            if spec is not None and nonce in spec.members:
                return spec
        content = _text_or_none(own_file)
        if content is None or not written:
            if files.root.is_dir():  # rank 0 makes it, in a run folder that is empty or a run's, and clears it
                write_bytes(own_file, nonce.encode())
                written = True
        elif content != nonce:
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


def _text_or_none(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:  # not there, or replaced while a shared file system looks
        return None


def _rank_half(spec: Path) -> list[str]:
    return [sys.executable, "-m", "stepscope.rank", str(spec)]
