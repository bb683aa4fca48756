"""Checks of the machine and its Python: torch, cores, memory, disk."""

from __future__ import annotations

import re

from stepscope.core.installing import install_extra
from stepscope.core.units import format_bytes, format_bytes_binary
from stepscope.core.words import counted, listed
from stepscope.machine.judging import Outcome, check, failed, local_ranks, passed, skipped, torch_build, warned, why
from stepscope.records.environment import EnvironmentRecord


@check("environment", "torch")
def torch(record: EnvironmentRecord) -> Outcome:
    """torch can be imported in this Python."""
    if record.torch is not None:
        return passed(torch_build(record.torch))
    reason = why(record, "torch")
    if reason == "not asked for":
        return skipped("torch was not checked")
    if "not installed" in reason:
        outcome = failed if record.gpus or record.variables.get("WORLD_SIZE") else warned
        return outcome(f"{reason}; reading traces and reports works without it", fix=install_extra("torch"))
    return failed(reason, fix="run `python -m stepscope.rank --probe` and repair what it prints")


OLDEST = (2, 6)
"""The oldest version of torch, as ``stepscope[torch]`` requires."""


@check("environment", "torch version")
def torch_version(record: EnvironmentRecord) -> Outcome:
    """torch is new enough for the rank half."""
    if record.torch is None:
        return skipped("torch does not respond")
    match = re.match(r"(\d+)\.(\d+)", record.torch.version)
    wanted = ".".join(map(str, OLDEST))
    if match is None:
        return skipped(f"{record.torch.version!r} is not a version number")
    if (int(match[1]), int(match[2])) < OLDEST:
        return failed(f"torch {record.torch.version} is older than {wanted}", fix=f"pip install -U 'torch>={wanted}'")
    return passed(f"{record.torch.version} is at least {wanted}")


@check("environment", "BF16")
def bf16(record: EnvironmentRecord) -> Outcome:
    """BF16 arithmetic in hardware."""
    torch = record.torch
    if torch is None:
        return skipped("torch does not respond")
    if torch.device_count:
        if torch.bf16:
            return passed("in hardware on every GPU")
        return warned(
            f"not in hardware on {listed(dict.fromkeys(torch.device_names))}",
            fix="train with precision amp_fp16 or fp32 instead of amp_bf16",
        )
    if not torch.bf16:
        return warned("this CPU build cannot multiply BF16 matrices", fix="use precision fp32 on this machine")
    if torch.bf16_cpu_native:
        return passed("native on this CPU")
    return warned(
        "works on this CPU without native instructions: right results, slower than fp32",
        fix="use precision fp32 for timings on this machine",
    )


CORES_PER_GPU_RANK = 2
"""Cores for the training thread and at least one for data loading and NCCL's proxy."""


@check("environment", "CPU cores")
def usable_cores(record: EnvironmentRecord) -> Outcome:
    """Enough CPU cores for the ranks after affinity and cgroup limits."""
    cores_text = f"{record.usable_cores} of {counted(record.logical_cores, 'core')} usable"
    if record.cpu_quota_cores is not None:
        cores_text += f" (cgroup quota {record.cpu_quota_cores:g})"
    ranks, source = local_ranks(record)
    wanted = ranks * CORES_PER_GPU_RANK if source == "one per GPU" else ranks
    if record.usable_cores < wanted:
        return warned(
            f"{cores_text}, too few for {counted(ranks, 'rank')} ({source})",
            fix=f"ask for at least {counted(wanted, 'core')} (Slurm: --cpus-per-task, container: --cpus)",
        )
    return passed(cores_text)


STOP_FRACTION = 0.05
"""Below this share of free memory the bench's watchdog ends a cell as host_oom."""
LOW_FRACTION = 0.15


@check("environment", "host memory")
def memory(record: EnvironmentRecord) -> Outcome:
    """Free host memory."""
    free = record.memory_available_bytes / record.memory_bytes
    limit = " (cgroup limit)" if record.memory_limit_bytes is not None else ""
    memory_text = (
        f"{format_bytes_binary(record.memory_available_bytes)} of {format_bytes_binary(record.memory_bytes)} free"
    )
    memory_text += limit
    fix = "stop other processes" + (" or raise the container's or job's memory limit" if limit else "")
    if free < STOP_FRACTION:
        return failed(f"{memory_text}: a benchmark would stop at once to protect the machine", fix=fix)
    if free < LOW_FRACTION:
        return warned(memory_text, fix=fix)
    return passed(memory_text)


LOW_SHARED_BYTES = 2**30  # containers give 64 MiB unless told otherwise


@check("environment", "shared memory")
def shared_memory(record: EnvironmentRecord) -> Outcome:
    """/dev/shm holds what DataLoader workers and NCCL share between processes."""
    if record.shared_memory is None:
        return skipped(why(record, "shared_memory", "host"))
    space_text = f"{format_bytes_binary(record.shared_memory.free_bytes)} free in /dev/shm"
    if record.shared_memory.free_bytes < LOW_SHARED_BYTES:
        return warned(
            f"{space_text}: DataLoader workers and NCCL crash with a bus error when it is full",
            fix="start the container with --ipc=host or --shm-size=8g (Kubernetes: an emptyDir of medium Memory)",
        )
    return passed(space_text)


LOW_DISK_BYTES = 2_000_000_000  # a profiled run of a few ranks
FULL_DISK_BYTES = 50_000_000  # samples alone


@check("environment", "disk space")
def disk(record: EnvironmentRecord) -> Outcome:
    """Room for run folders where runs are written."""
    if record.disk is None:
        return skipped(why(record, "disk", "host"))
    space_text = f"{format_bytes(record.disk.free_bytes)} free in {record.disk.path}"
    fix = "free some space or write runs elsewhere (-o DIR)"
    if record.disk.free_bytes < FULL_DISK_BYTES:
        return failed(space_text, fix=fix)
    if record.disk.free_bytes < LOW_DISK_BYTES:
        return warned(f"{space_text}: traces of a profiled run may not fit", fix=fix)
    return passed(space_text)


@check("environment", "SCHED_BATCH")
def batch_scheduling(record: EnvironmentRecord) -> Outcome:
    """SCHED_BATCH, under which gloo ranks that share cores preempt each other far less."""
    if record.batch_scheduling is None:
        return skipped(why(record, "batch_scheduling", "host"))
    if record.batch_scheduling:
        return passed(f"allowed (this shell runs under SCHED_{(record.scheduling_policy or 'other').upper()})")
    return warned(
        "not allowed: small gloo messages are slower and their times scatter more",
        fix="allow sched_setscheduler in the container's seccomp profile",
    )


LOW_FILES = 4096


@check("environment", "open files")
def open_files(record: EnvironmentRecord) -> Outcome:
    """Open files per process: sockets between ranks and tensors from DataLoader workers each take one."""
    if record.limits is None:
        return skipped(why(record, "limits", "host"))
    soft = record.limits.open_files_soft
    if soft is None or soft >= LOW_FILES:
        return passed("unlimited" if soft is None else f"{soft} per process")
    hard = record.limits.open_files_hard
    reach = "65536" if hard is None or hard >= 65536 else str(hard)
    fix = (
        f"ulimit -n {reach}"
        if hard is None or hard >= LOW_FILES
        else "raise the hard limit (limits.conf, --ulimit nofile)"
    )
    return warned(f"{soft} per process: many ranks or DataLoader workers run out of them", fix=fix)
