"""Slurm tasks per node fit torchrun, which starts the ranks of a node itself."""

from __future__ import annotations

import re

from stepscope.core.words import counted
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    integer,
    passed,
    skipped,
    variable,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.scheduler != "slurm":
        return skipped("not in a Slurm job")
    tasks = tasks_per_node(record)
    if tasks is None:
        return skipped("Slurm does not tell the tasks per node here")
    if tasks > 1:
        return warned(
            f"{tasks} tasks per node: `srun torchrun --nproc-per-node={tasks}` would start {tasks} x {tasks} ranks a node",
            fix="sbatch --ntasks-per-node=1 with torchrun, or srun python without torchrun",
        )
    cpus = integer(record, "SLURM_CPUS_PER_TASK")
    if cpus is None and record.usable_cores < 2:
        return warned(
            "one task per node without --cpus-per-task: all ranks of the node share one core",
            fix="sbatch --cpus-per-task=CORES and srun --cpus-per-task=$SLURM_CPUS_PER_TASK",
        )
    cores = f" with {counted(cpus, 'core')}" if cpus else ""
    return passed(f"one task per node{cores}, as torchrun wants it")


def tasks_per_node(record: EnvironmentRecord) -> int | None:
    """The largest number of tasks on a node: SLURM_NTASKS_PER_NODE, else from ``4(x2),3`` in SLURM_TASKS_PER_NODE."""
    told = integer(record, "SLURM_NTASKS_PER_NODE")
    if told is not None:
        return told
    text = variable(record, "SLURM_STEP_TASKS_PER_NODE") or variable(record, "SLURM_TASKS_PER_NODE") or ""
    counts = [int(match[1]) for match in re.finditer(r"(\d+)(?:\(x\d+\))?(?:,|$)", text)]
    return max(counts, default=None)


CHECK = Check(section="launcher", title="Slurm tasks", run=run)
