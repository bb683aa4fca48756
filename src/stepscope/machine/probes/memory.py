"""Memory: installed and available, or what the cgroup allows where that is less."""

from __future__ import annotations

import psutil

from stepscope.core.errors import MissingError
from stepscope.machine.cgroups import CgroupLimits, cgroup_limits
from stepscope.machine.probes._common import Facts, Probe, ProbeContext


def run(context: ProbeContext) -> Facts:
    """Memory facts in bytes."""
    try:
        machine = psutil.virtual_memory()
    except OSError as error:
        raise MissingError(
            "the size of this machine's memory cannot be read",
            why=str(error),
            fix="mount /proc in this container",
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
    """(total, available) bytes of the machine after the cgroup's limit; never more than the machine has."""
    if limits.memory_limit_bytes is None or limits.memory_limit_bytes >= total:
        return total, available
    left = limits.memory_limit_bytes - (limits.memory_used_bytes or 0)
    return limits.memory_limit_bytes, max(min(available, left), 0)


PROBE = Probe(summary="memory, as far as the cgroup allows", run=run)
