"""CPU and memory: what there is, and how much of it affinity and cgroups allow this process."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil

from stepscope.core.errors import MissingError, Unavailable
from stepscope.machine.cgroups import CgroupLimits, cgroup_limits
from stepscope.machine.probes._common import Facts, ProbeContext, probe, read_text


@probe("CPU model, cores, and how many of them affinity and cgroups allow")
def cpu(context: ProbeContext) -> Facts:
    """CPU facts; ``usable_cores`` is the smaller of the affinity mask and the cgroup quota rounded up."""
    logical = psutil.cpu_count(logical=True) or os.cpu_count() or 1
    quota = cgroup_limits(context.root).cpu_quota_cores
    return {
        "logical_cores": logical,
        "usable_cores": usable_cores(affinity=_usable_cores(), logical=logical, quota=quota),
        "cpu_quota_cores": quota,
        "cpu_model": _cpu_model(context.root) or Unavailable("/proc/cpuinfo names no model"),
        "physical_cores": psutil.cpu_count(logical=False) or Unavailable("the operating system does not report it"),
        "numa_nodes": _numa_nodes(context.root) or Unavailable("/sys/devices/system/node is not readable"),
    }


def usable_cores(*, affinity: int | None, logical: int, quota: float | None) -> int:
    """Cores this process can keep busy: min(affinity mask, quota rounded up), at least 1.

    A quota of 2.5 cores feeds three threads, none of them whole: rounding up matches the JVM and Go runtimes.
    """
    cores = affinity if affinity is not None else logical
    return max(min(cores, math.ceil(quota)) if quota is not None else cores, 1)


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _cpu_model(root: Path) -> str | None:
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    return fields.get("model name") or fields.get("hardware") or fields.get("cpu") or platform.processor() or None


def _numa_nodes(root: Path) -> int | None:
    nodes = root / "sys/devices/system/node"
    if not nodes.is_dir():
        return None
    return sum(1 for entry in nodes.iterdir() if entry.name.removeprefix("node").isdigit()) or None


@probe("memory, as far as the cgroup allows")
def memory(context: ProbeContext) -> Facts:
    """Memory facts in bytes."""
    try:
        machine = psutil.virtual_memory()
    except OSError as error:
        raise MissingError(
            "the size of this machine's memory cannot be read", why=str(error), fix="mount /proc in this container"
        ) from error
    limits = cgroup_limits(context.root)
    total, available = within_limits(machine.total, machine.available, limits)
    limit = limits.memory_limit_bytes
    return {
        "memory_bytes": total,
        "memory_available_bytes": available,
        "memory_limit_bytes": limit if limit is not None and limit < machine.total else None,
    }


def within_limits(total: int, available: int, limits: CgroupLimits) -> tuple[int, int]:
    """Return (total, available) bytes within the cgroup's limit; never more than the machine has."""
    if limits.memory_limit_bytes is None or limits.memory_limit_bytes >= total:
        return total, available
    left = limits.memory_limit_bytes - (limits.memory_used_bytes or 0)
    return limits.memory_limit_bytes, max(min(available, left), 0)
