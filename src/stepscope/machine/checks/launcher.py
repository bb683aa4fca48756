"""Checks of what launchers set."""

from __future__ import annotations

import re

from stepscope.core.words import counted
from stepscope.machine.judging import (
    Outcome,
    check,
    failed,
    integer,
    local_ranks,
    no_gpu_reason,
    passed,
    several_hosts,
    skipped,
    variable,
    warned,
)
from stepscope.records.environment import EnvironmentRecord

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = (
    "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
    "RAY_JOB_ID", "RAY_RAYLET_PID",
)  # fmt: skip
"""Variables of processes that a launcher starts; Ray Train's workers have RANK and WORLD_SIZE beside Ray's own."""


@check("launcher", "rank variables")
def stale_world(record: EnvironmentRecord) -> Outcome:
    """RANK and WORLD_SIZE are there only where a launcher set them; left over in a shell they make a job wait for ever."""
    present = [name for name in NAMES if variable(record, name) is not None]
    if "RANK" not in present and "WORLD_SIZE" not in present:
        return passed("RANK and WORLD_SIZE are not set: a launcher sets them")
    wrong = [name for name in ("RANK", "WORLD_SIZE") if integer(record, name) is None]
    if wrong:
        missing = " and ".join(wrong)
        return failed(
            f"{missing} is missing or not a number, while {', '.join(present)} is set", fix=f"unset {' '.join(present)}"
        )
    rank, world = integer(record, "RANK") or 0, integer(record, "WORLD_SIZE") or 0
    if rank >= world:
        return failed(f"RANK={rank} does not exist in WORLD_SIZE={world}", fix=f"unset {' '.join(present)}")
    if any(variable(record, name) for name in _LAUNCHERS) or record.scheduler is not None:
        return passed(f"rank {rank} of {world}, set by a launcher")
    return warned(
        f"RANK={rank} WORLD_SIZE={world} without a launcher: a training script would wait for {world - 1} other ranks"
        if world > 1
        else f"RANK={rank} WORLD_SIZE={world} without a launcher: stepscope would join that world of one",
        fix=f"unset {' '.join(present)}",
    )


@check("launcher", "a GPU per rank")
def local_rank(record: EnvironmentRecord) -> Outcome:
    """The local rank has a device of its own."""
    local, world = integer(record, "LOCAL_RANK"), integer(record, "LOCAL_WORLD_SIZE")
    if local is None and world is None:
        return skipped("LOCAL_RANK is not set: not running under a launcher")
    if record.torch is None:
        return skipped("torch does not respond")
    devices = record.torch.device_count
    if not devices:
        return skipped(no_gpu_reason(record))
    if local is not None and local >= devices:
        hidden = "CUDA_VISIBLE_DEVICES" in record.variables
        return failed(
            f"LOCAL_RANK={local} has no GPU: {counted(devices, 'GPU')} visible"
            + (f" (CUDA_VISIBLE_DEVICES={record.variables['CUDA_VISIBLE_DEVICES']})" if hidden else ""),
            fix=f"start at most {counted(devices, 'rank')} per host, or make the other GPUs visible",
        )
    if world is not None and world > devices:
        return failed(f"{counted(world, 'rank')} for {counted(devices, 'GPU')}", fix=f"--nproc-per-node={devices}")
    return passed(f"every local rank has one of {counted(devices, 'GPU')}")


@check("launcher", "threads")
def threads(record: EnvironmentRecord) -> Outcome:
    """Ranks times threads fit the cores."""
    setting = variable(record, "OMP_NUM_THREADS")
    threads = integer(record, "OMP_NUM_THREADS")
    if setting is not None and not threads:
        return warned(
            f"OMP_NUM_THREADS={setting} is not a number of threads", fix="export OMP_NUM_THREADS=1 or unset it"
        )
    ranks, source = local_ranks(record)
    cores = record.usable_cores
    fix = f"export OMP_NUM_THREADS={max(cores // ranks, 1)}"
    if threads is not None:
        product = f"{counted(ranks, 'rank')} ({source}) x OMP_NUM_THREADS={threads}"
        if ranks * threads > cores:
            return warned(f"{product} = {counted(ranks * threads, 'thread')} on {counted(cores, 'core')}", fix=fix)
        return passed(f"{product} fits {counted(cores, 'core')}")
    default = record.torch.intra_op_threads if record.torch is not None else None
    if default is None:
        return skipped("OMP_NUM_THREADS is not set and torch does not respond")
    if default > cores:
        return warned(
            f"each process starts {counted(default, 'thread')} on {counted(cores, 'usable core')} "
            "(torch does not see the limit)",
            fix=fix,
        )
    if ranks > 1 and ranks * default > cores:
        return warned(
            f"OMP_NUM_THREADS is not set: ranks started without torchrun take {counted(default, 'thread')} each, "
            f"{ranks * default} on {counted(cores, 'core')}; torchrun would set 1",
            fix=fix,
        )
    return passed(f"OMP_NUM_THREADS is not set: a single process takes {default}, torchrun gives each rank 1")


_LOOPBACK = ("localhost", "127.0.0.1", "127.0.1.1", "::1")


@check("launcher", "master address")
def master_address(record: EnvironmentRecord) -> Outcome:
    """MASTER_ADDR and MASTER_PORT can work."""
    address, port = variable(record, "MASTER_ADDR"), variable(record, "MASTER_PORT")
    if address is None and port is None:
        return skipped("MASTER_ADDR is not set: the launcher sets it")
    if port is not None and not 0 < (integer(record, "MASTER_PORT") or 0) < 65536:
        return failed(f"MASTER_PORT={port} is not a port", fix="export MASTER_PORT=29500")
    if address is not None and address in _LOOPBACK and several_hosts(record):
        return failed(
            f"MASTER_ADDR={address} in a job on several hosts: each host would connect to itself",
            fix='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1), or the first host\'s name',
        )
    return passed(f"{address or 'address from the launcher'}, port {port or 'from the launcher'}")


@check("launcher", "Slurm tasks")
def slurm_tasks(record: EnvironmentRecord) -> Outcome:
    """Slurm tasks per node fit torchrun, which starts the ranks of a node itself."""
    if record.scheduler != "slurm":
        return skipped("not in a Slurm job")
    tasks = tasks_per_node(record)
    if tasks is None:
        return skipped("Slurm does not state the tasks per node here")
    if tasks > 1:
        return warned(
            f"{tasks} tasks per node: `srun torchrun --nproc-per-node={tasks}` would start {tasks} x {tasks} ranks per node",
            fix="sbatch --ntasks-per-node=1 with torchrun, or srun python without torchrun",
        )
    cpus = integer(record, "SLURM_CPUS_PER_TASK")
    if cpus is None and record.usable_cores < 2:
        return warned(
            "one task per node without --cpus-per-task: all ranks of the node share one core",
            fix="sbatch --cpus-per-task=CORES and srun --cpus-per-task=$SLURM_CPUS_PER_TASK",
        )
    cores = f" with {counted(cpus, 'core')}" if cpus else ""
    return passed(f"one task per node{cores}, as torchrun needs it")


def tasks_per_node(record: EnvironmentRecord) -> int | None:
    """The largest number of tasks on a node: SLURM_NTASKS_PER_NODE, else from ``4(x2),3`` in SLURM_TASKS_PER_NODE."""
    tasks = integer(record, "SLURM_NTASKS_PER_NODE")
    if tasks is not None:
        return tasks
    text = variable(record, "SLURM_STEP_TASKS_PER_NODE") or variable(record, "SLURM_TASKS_PER_NODE") or ""
    counts = [int(match[1]) for match in re.finditer(r"(\d+)(?:\(x\d+\))?(?:,|$)", text)]
    return max(counts, default=None)
