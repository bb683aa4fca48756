"""torch can be imported in this Python."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, failed, passed, skipped, why
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.torch is not None:
        build = record.torch.cuda_version and f"CUDA {record.torch.cuda_version}"
        build = build or (record.torch.hip_version and f"ROCm {record.torch.hip_version}") or "CPU build"
        return passed(f"torch {record.torch.version} ({build})")
    reason = why(record, "torch")
    if reason == "not asked for":
        return skipped("torch was not asked")
    if "not installed" in reason:
        return failed(f"{reason}; reading traces and reports works without it", fix="pip install 'stepscope[torch]'")
    return failed(reason, fix="run `python -m stepscope.rank --probe` and repair what it prints")


CHECK = Check(section="environment", title="torch", run=run, order=0)
