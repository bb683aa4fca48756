"""The peak rate of each GPU is in the accelerator table; without it MFU is unknown."""

from __future__ import annotations

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_flops
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    gpu_names,
    no_gpu_reason,
    passed,
    skipped,
    warned,
)
from stepscope.hardware.lookup import find
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    names = tuple(dict.fromkeys(gpu_names(record)))
    if not names:
        return skipped(no_gpu_reason(record))
    known: list[str] = []
    for name in names:
        found = find(name)
        if isinstance(found, Unavailable):
            return warned(f"{found.reason}: MFU stays unknown", fix="see `stepscope hardware` for the known ones")
        dtype = "bf16" if "bf16" in found.peak_flops_per_s else "fp16"
        peak = found.peak(dtype)
        if not isinstance(peak, Unavailable):
            known.append(f"{found.name}: {format_flops(peak)} dense {dtype}")
    return passed("; ".join(known))


CHECK = Check(section="gpus", title="peak rates known", run=run, order=2)
