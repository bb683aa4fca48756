"""Free host memory."""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary
from stepscope.environment.checks._common import Check, Outcome, failed, passed, warned
from stepscope.records.environment import EnvironmentRecord

STOP_FRACTION = 0.05
"""Below this share of free memory the bench's watchdog ends a cell as host_oom."""
LOW_FRACTION = 0.15


def run(record: EnvironmentRecord) -> Outcome:
    free = record.memory_available_bytes / record.memory_bytes
    limit = " (cgroup limit)" if record.memory_limit_bytes is not None else ""
    found = f"{format_bytes_binary(record.memory_available_bytes)} of {format_bytes_binary(record.memory_bytes)} free"
    found += limit
    fix = "end other processes" + (" or raise the container's or job's memory limit" if limit else "")
    if free < STOP_FRACTION:
        return failed(f"{found}: a benchmark would stop at once to save the machine", fix=fix)
    if free < LOW_FRACTION:
        return warned(found, fix=fix)
    return passed(found)


CHECK = Check(section="environment", title="host memory", run=run, order=4)
