"""SCHED_BATCH, under which gloo ranks that share cores preempt each other far less."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.batch_scheduling is None:
        return skipped(why(record, "batch_scheduling", "host"))
    if record.batch_scheduling:
        return passed(f"allowed (this shell runs under SCHED_{(record.scheduling_policy or 'other').upper()})")
    return warned(
        "not allowed: small gloo messages are slower and their times scatter more",
        fix="allow sched_setscheduler in the container's seccomp profile",
    )


CHECK = Check(section="environment", title="SCHED_BATCH", run=run)
