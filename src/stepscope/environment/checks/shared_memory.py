"""/dev/shm holds what DataLoader workers and NCCL share between processes."""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary
from stepscope.environment.checks._common import Check, Outcome, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord

LOW_BYTES = 2**30  # containers give 64 MiB unless told otherwise


def run(record: EnvironmentRecord) -> Outcome:
    if record.shared_memory is None:
        return skipped(why(record, "shared_memory", "host"))
    found = f"{format_bytes_binary(record.shared_memory.free_bytes)} free in /dev/shm"
    if record.shared_memory.free_bytes < LOW_BYTES:
        return warned(
            f"{found}: DataLoader workers and NCCL end with a bus error when it is full",
            fix="start the container with --ipc=host or --shm-size=8g (Kubernetes: an emptyDir of medium Memory)",
        )
    return passed(found)


CHECK = Check(section="environment", title="shared memory", run=run, order=5)
