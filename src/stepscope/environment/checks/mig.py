"""GPUs are whole: ranks on MIG slices cannot use NCCL between slices of one GPU."""

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
    if not record.gpus:
        return skipped(no_gpu_reason(record))
    split = [f"GPU {gpu.index}" for gpu in record.gpus if gpu.mig]
    if split:
        return warned(
            f"split into MIG slices: {listed(split)}; peaks in the accelerator table are those of a whole GPU",
            fix="use GPUs without MIG for multi-rank training",
        )
    return passed("no MIG slices")


CHECK = Check(section="gpus", title="whole GPUs", run=run)
