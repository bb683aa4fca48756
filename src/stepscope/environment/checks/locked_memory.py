"""RDMA registers memory, which counts against the limit on locked memory."""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary
from stepscope.environment.checks._common import Check, Outcome, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if not any(nic.rdma for nic in record.nics):
        return skipped("no RDMA device on this machine")
    if record.limits is None:
        return skipped(why(record, "limits", "host"))
    limit = record.limits.locked_memory_bytes
    if limit is None:
        return passed("unlimited")
    return warned(
        f"limited to {format_bytes_binary(limit)}: NCCL over RDMA fails to register its buffers",
        fix="ulimit -l unlimited (container: --ulimit memlock=-1)",
    )


CHECK = Check(section="network", title="locked memory", run=run)
