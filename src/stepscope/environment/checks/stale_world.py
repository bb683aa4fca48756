"""RANK and WORLD_SIZE are there only where a launcher set them; left over in a shell they make a job wait for ever."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, failed, integer, passed, variable, warned
from stepscope.records.environment import EnvironmentRecord

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def run(record: EnvironmentRecord) -> Outcome:
    present = [name for name in NAMES if variable(record, name) is not None]
    if "RANK" not in present and "WORLD_SIZE" not in present:
        return passed("RANK and WORLD_SIZE are not set: a launcher decides")
    wrong = [name for name in ("RANK", "WORLD_SIZE") if integer(record, name) is None]
    if wrong:
        missing = " and ".join(wrong)
        return failed(
            f"{missing} is missing or no number, while {', '.join(present)} is set",
            fix=f"unset {' '.join(present)}",
        )
    rank, world = integer(record, "RANK") or 0, integer(record, "WORLD_SIZE") or 0
    if rank >= world:
        return failed(f"RANK={rank} does not exist in WORLD_SIZE={world}", fix=f"unset {' '.join(present)}")
    if any(variable(record, name) for name in _LAUNCHERS) or record.scheduler is not None:
        return passed(f"rank {rank} of {world}, set by a launcher")
    return warned(
        f"RANK={rank} WORLD_SIZE={world} without a launcher: a training script would wait for {world - 1} other ranks"
        if world > 1
        else f"RANK={rank} WORLD_SIZE={world} without a launcher: stepscope would join that world of one",
        fix=f"unset {' '.join(present)}",
    )


CHECK = Check(section="launcher", title="rank variables", run=run, order=0)
