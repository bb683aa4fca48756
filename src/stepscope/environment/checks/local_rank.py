"""The local rank has a device of its own."""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    failed,
    integer,
    no_gpu_reason,
    passed,
    skipped,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    local, world = integer(record, "LOCAL_RANK"), integer(record, "LOCAL_WORLD_SIZE")
    if local is None and world is None:
        return skipped("LOCAL_RANK is not set: this is no rank")
    if record.torch is None:
        return skipped("torch does not answer")
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


CHECK = Check(section="launcher", title="a GPU per rank", run=run, order=1)
