"""GPUs can read each other's memory directly (P2P)."""

from __future__ import annotations

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    listed,
    no_gpu_reason,
    passed,
    skipped,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.torch is None:
        return skipped("torch does not answer")
    count = record.torch.device_count
    if count < 2:
        return skipped("one GPU" if count else no_gpu_reason(record))
    without = record.torch.no_peer_access
    pairs = count * (count - 1) // 2
    if without:
        return warned(
            f"{len(without)} of {pairs} pairs have none ({listed(f'{a}-{b}' for a, b in without)}): "
            "NCCL copies through host memory",
            fix="normal for GeForce cards; else turn off ACS and the IOMMU in the BIOS",
        )
    return passed("between all pairs")


CHECK = Check(section="links", title="peer access", run=run)
