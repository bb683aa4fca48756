"""Nobody else computes on the GPUs."""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary
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

FREE_BYTES = 2 * 2**30  # the driver's own share is up to about 1 GiB
FREE_FRACTION = 0.05


def run(record: EnvironmentRecord) -> Outcome:
    known = [
        (gpu.index, gpu.memory_used_bytes, gpu.memory_bytes)
        for gpu in record.gpus
        if gpu.memory_used_bytes is not None and gpu.memory_bytes
    ]
    if not known:
        return skipped("the driver does not tell" if record.gpus else no_gpu_reason(record))
    busy = [
        f"GPU {index}: {format_bytes_binary(used)} of {format_bytes_binary(total)}"
        for index, used, total in known
        if used > max(FREE_BYTES, FREE_FRACTION * total)
    ]
    if busy:
        return warned(
            f"memory in use already ({listed(busy)}): timings will suffer",
            fix="end the other processes (`nvidia-smi` lists them)",
        )
    return passed("memory free on all of them")


CHECK = Check(section="gpus", title="GPUs idle", run=run, order=3)
