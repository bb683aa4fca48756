"""The world that srun describes, in the variables by which torch's launchers describe one."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping

from stepscope.core.errors import MissingError, UsageError

FIRST_PORT, PORTS = 20_000, 20_000
"""MASTER_PORT lies in [20000, 40000), by job and step, so that jobs that share a host rarely meet."""

_SCONTROL_TIMEOUT_S = 10.0
_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")


def slurm_world(environ: Mapping[str, str], *, address: Callable[[str], str] | None = None) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a task of srun.

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
        "MASTER_ADDR": (address or _address)(first_host(hosts)),
        "MASTER_PORT": str(FIRST_PORT + (job + step) % PORTS),
    }


def first_host(nodelist: str) -> str:
    """The first name of Slurm's host list: ``gpu[007-009,12],login1`` -> ``gpu007``."""
    name = re.match(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name[0] if name else "")


def tasks_per_node(text: str) -> list[int]:
    """SLURM_STEP_TASKS_PER_NODE by node: ``4(x2),3`` -> [4, 4, 3]; empty where it cannot be read."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _address(host: str) -> str:
    """The name where it resolves, else the address that Slurm knows; never localhost: each host takes it for itself."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pass
    else:
        return host
    try:
        line = ["scontrol", "show", "node", host, "--oneliner"]
        told = subprocess.run(line, capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = re.search(r"\bNodeAddr=(\S+)", told)
    if found is None:
        raise MissingError(
            f"the address of {host}, where rank 0 runs, is unknown",
            why="its name does not resolve, and `scontrol show node` gives no NodeAddr",
            fix="export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each task",
        )
    return found[1]
