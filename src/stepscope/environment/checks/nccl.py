"""torch has NCCL (RCCL on AMD), which GPU ranks need."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, failed, no_gpu_reason, passed, skipped
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.torch is None:
        return skipped("torch does not answer")
    if record.torch.nccl:
        return passed(f"version {record.torch.nccl_version}" if record.torch.nccl_version else "available")
    if not record.torch.device_count:
        return skipped(no_gpu_reason(record))
    return failed("GPUs here, but this torch was built without NCCL", fix="install the CUDA build of torch for Linux")


CHECK = Check(section="network", title="NCCL", run=run, order=1)
