"""All GPUs of one model: in data-parallel training the slowest one sets the pace."""

from __future__ import annotations

from collections import Counter

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    gpu_names,
    no_gpu_reason,
    passed,
    skipped,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    models = Counter(gpu_names(record))
    if not models:
        return skipped(no_gpu_reason(record))
    shown = ", ".join(f"{count} x {name}" for name, count in models.items())
    if len(models) > 1:
        return warned(
            f"mixed models: {shown}; every step waits for the slowest",
            fix="choose GPUs of one model with CUDA_VISIBLE_DEVICES",
        )
    return passed(shown)


CHECK = Check(section="gpus", title="one GPU model", run=run, order=1)
