"""Ranks times threads fit the cores."""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    integer,
    local_ranks,
    passed,
    skipped,
    variable,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    setting = variable(record, "OMP_NUM_THREADS")
    threads = integer(record, "OMP_NUM_THREADS")
    if setting is not None and not threads:
        return warned(f"OMP_NUM_THREADS={setting} is no number of threads", fix="export OMP_NUM_THREADS=1 or unset it")
    ranks, source = local_ranks(record)
    cores = record.usable_cores
    fix = f"export OMP_NUM_THREADS={max(cores // ranks, 1)}"
    if threads is not None:
        product = f"{counted(ranks, 'rank')} ({source}) x OMP_NUM_THREADS={threads}"
        if ranks * threads > cores:
            return warned(f"{product} = {counted(ranks * threads, 'thread')} on {counted(cores, 'core')}", fix=fix)
        return passed(f"{product} fits {counted(cores, 'core')}")
    default = record.torch.intra_op_threads if record.torch is not None else None
    if default is None:
        return skipped("OMP_NUM_THREADS is not set and torch does not answer")
    if default > cores:
        return warned(
            f"each process starts {counted(default, 'thread')} on {counted(cores, 'usable core')} "
            "(torch does not see the limit)",
            fix=fix,
        )
    if ranks > 1 and ranks * default > cores:
        return warned(
            f"OMP_NUM_THREADS is not set: ranks started without torchrun take {counted(default, 'thread')} each, "
            f"{ranks * default} on {counted(cores, 'core')}; torchrun would set 1",
            fix=fix,
        )
    return passed(f"OMP_NUM_THREADS is not set: a lone process takes {default}, torchrun gives each rank 1")


CHECK = Check(section="launcher", title="threads", run=run, order=2)
