"""RDMA devices (InfiniBand, RoCE) are up and NCCL may use them."""

from __future__ import annotations

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    listed,
    passed,
    skipped,
    switched_on,
    variable,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    devices = [nic for nic in record.nics if nic.rdma]
    if not devices:
        return skipped("no RDMA device on this machine")
    active = [nic.name for nic in devices if nic.up]
    if switched_on(variable(record, "NCCL_IB_DISABLE")):
        return warned(
            f"NCCL_IB_DISABLE=1 turns {listed(active or [d.name for d in devices])} off: NCCL falls back to TCP",
            fix="unset NCCL_IB_DISABLE",
        )
    if not active:
        return warned(
            f"none of {listed([d.name for d in devices])} is active: NCCL falls back to TCP",
            fix="check cable and port with `ibstat` (`rdma link` for RoCE)",
        )
    return passed(f"{len(active)} of {len(devices)} active: {listed(active)}")


CHECK = Check(section="network", title="RDMA", run=run, order=5)
