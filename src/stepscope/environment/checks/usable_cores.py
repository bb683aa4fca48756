"""Enough CPU cores for the ranks after affinity and cgroup limits."""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.environment.checks._common import Check, Outcome, local_ranks, passed, warned
from stepscope.records.environment import EnvironmentRecord

CORES_PER_GPU_RANK = 2
"""The training thread and at least one for data loading and NCCL's proxy."""


def run(record: EnvironmentRecord) -> Outcome:
    found = f"{record.usable_cores} of {counted(record.logical_cores, 'core')} usable"
    if record.cpu_quota_cores is not None:
        found += f" (cgroup quota {record.cpu_quota_cores:g})"
    ranks, source = local_ranks(record)
    wanted = ranks * CORES_PER_GPU_RANK if source == "one per GPU" else ranks
    if record.usable_cores < wanted:
        return warned(
            f"{found}, too few for {counted(ranks, 'rank')} ({source})",
            fix=f"ask for at least {counted(wanted, 'core')} (Slurm: --cpus-per-task, container: --cpus)",
        )
    return passed(found)


CHECK = Check(section="environment", title="CPU cores", run=run, order=3)
