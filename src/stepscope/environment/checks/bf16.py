"""BF16 arithmetic in hardware."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, listed, passed, skipped, warned
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    torch = record.torch
    if torch is None:
        return skipped("torch does not answer")
    if torch.device_count:
        if torch.bf16:
            return passed("in hardware on every GPU")
        return warned(
            f"not in hardware on {listed(dict.fromkeys(torch.device_names))}",
            fix="train with precision amp_fp16 or fp32 instead of amp_bf16",
        )
    if not torch.bf16:
        return warned("this CPU build cannot multiply BF16 matrices", fix="use precision fp32 on this machine")
    if torch.bf16_cpu_native:
        return passed("native on this CPU")
    return warned(
        "works on this CPU without native instructions: right results, slower than fp32",
        fix="use precision fp32 for timings on this machine",
    )


CHECK = Check(section="environment", title="BF16", run=run, order=2)
