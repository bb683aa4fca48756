"""What a check is and says, and what several of them ask of the record."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.machine.topology import Topology, parse_topology
from stepscope.records.environment import EnvironmentRecord, TorchFact


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"  # works, slower or less trustworthy than it could
    FAIL = "fail"  # something asked of this machine will not work
    SKIP = "skip"  # nothing to judge here; the message says why


@record
class Outcome:
    """message: what was found. fix: one line a user can act on; every WARN and FAIL has one."""

    status: Status
    message: str
    fix: str | None = None


@record
class Check:
    """section: environment | gpus | links | network | launcher. order: place within it, then by key. ``run`` is pure."""

    section: str
    title: str
    run: Callable[[EnvironmentRecord], Outcome]
    order: int = 50


CHECKS: dict[str, Check] = {}
"""The shipped checks by key, in the order in which each section shows them."""


def check(section: str, title: str) -> Callable[[Callable[[EnvironmentRecord], Outcome]], Check]:
    """Makes a function the check of its own name."""

    def add(run: Callable[[EnvironmentRecord], Outcome]) -> Check:
        CHECKS[run.__name__] = Check(section=section, title=title, run=run, order=len(CHECKS))
        return CHECKS[run.__name__]

    return add


def passed(message: str) -> Outcome:
    return Outcome(status=Status.PASS, message=message)


def warned(message: str, *, fix: str) -> Outcome:
    return Outcome(status=Status.WARN, message=message, fix=fix)


def failed(message: str, *, fix: str) -> Outcome:
    return Outcome(status=Status.FAIL, message=message, fix=fix)


def skipped(reason: str) -> Outcome:
    return Outcome(status=Status.SKIP, message=reason)


def why(record: EnvironmentRecord, *keys: str) -> str:
    """The reason of the first of ``keys`` that is unavailable."""
    return next((record.unavailable[key] for key in keys if key in record.unavailable), "unknown reason")


def variable(record: EnvironmentRecord, name: str) -> str | None:
    """Value of an environment variable, None when unset or empty."""
    return record.variables.get(name, "").strip() or None


def integer(record: EnvironmentRecord, name: str) -> int | None:
    """The variable as an integer; None when unset or no number."""
    value = variable(record, name)
    return int(value) if value is not None and value.isdecimal() else None


def switched_on(value: str | None) -> bool:
    """Read a switch as NCCL and torch do: 1, y, yes, true, on."""
    return value is not None and value.lower() in ("1", "y", "yes", "true", "on")


def torch_build(torch: TorchFact) -> str:
    """``torch 2.9.0 (CUDA 12.8)``."""
    build = torch.cuda_version and f"CUDA {torch.cuda_version}"
    return f"torch {torch.version} ({build or (torch.hip_version and f'ROCm {torch.hip_version}') or 'CPU build'})"


def gpu_names(record: EnvironmentRecord) -> tuple[str, ...]:
    """Names of the GPUs that torch may use; without torch, of those the driver lists."""
    if record.torch is not None:
        return record.torch.device_names
    return tuple(gpu.name for gpu in record.gpus)


def no_gpu_reason(record: EnvironmentRecord) -> str:
    """Why there is nothing to say about GPUs."""
    if record.torch is not None and record.gpus:
        present = len(record.gpus)
        return "torch cannot use the GPU" if present == 1 else f"torch can use none of the {present} GPUs"
    if "gpus" in record.unavailable:
        return f"no GPU: {record.unavailable['gpus']}"
    return "no GPU on this machine"


def topology_of(record: EnvironmentRecord) -> Topology | Unavailable:
    """The parsed link matrix, or why there is none."""
    if record.topology is None:
        return Unavailable(why(record, "topology"))
    return parse_topology(record.topology)


def several_gpus(record: EnvironmentRecord) -> Topology | Unavailable:
    """The link matrix of a machine with at least two GPUs."""
    topology = topology_of(record)
    if isinstance(topology, Unavailable):
        return Unavailable(topology.reason if record.gpus or gpu_names(record) else no_gpu_reason(record))
    return topology if len(topology.gpus) > 1 else Unavailable("one GPU: no links between GPUs")


def local_ranks(record: EnvironmentRecord) -> tuple[int, str]:
    """Return (ranks per machine, where that number comes from); 1 when nothing tells."""
    ranks = integer(record, "LOCAL_WORLD_SIZE")
    if ranks:
        return ranks, "LOCAL_WORLD_SIZE"
    count = len(gpu_names(record))
    return (count, "one per GPU") if count else (1, "no launcher and no GPU")


def several_hosts(record: EnvironmentRecord) -> bool:
    """Return whether the variables describe a job on more than one host."""
    world, local = integer(record, "WORLD_SIZE"), integer(record, "LOCAL_WORLD_SIZE")
    nodes = integer(record, "SLURM_NNODES") or integer(record, "SLURM_JOB_NUM_NODES") or 1
    return nodes > 1 or bool(world and local and world > local)
