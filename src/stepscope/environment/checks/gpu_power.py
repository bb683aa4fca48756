"""GPUs may draw the power they were specified with."""

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
    known = [
        (gpu.index, gpu.power_limit_w, gpu.power_limit_default_w)
        for gpu in record.gpus
        if gpu.power_limit_w is not None and gpu.power_limit_default_w is not None
    ]
    if not known:
        return skipped("the driver does not tell" if record.gpus else no_gpu_reason(record))
    capped = [f"GPU {index}: {limit:.0f} of {full:.0f} W" for index, limit, full in known if limit < 0.98 * full]
    if capped:
        return warned(
            f"power limit lowered ({listed(capped)}): clocks drop under load",
            fix="ask the operator, or as root: nvidia-smi -pl WATTS",
        )
    return passed(listed(dict.fromkeys(f"{limit:.0f} W" for _, limit, _ in known)))


CHECK = Check(section="gpus", title="power limit", run=run)
