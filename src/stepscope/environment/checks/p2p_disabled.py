"""NCCL is not told to avoid the fast paths inside the machine."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, listed, passed, switched_on, variable, warned
from stepscope.records.environment import EnvironmentRecord

SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_DISABLE", "NCCL_CUMEM_DISABLE")
LEVELS = ("NCCL_P2P_LEVEL",)


def run(record: EnvironmentRecord) -> Outcome:
    off = [name for name in SWITCHES if switched_on(variable(record, name))]
    if variable(record, "NCCL_NVLS_ENABLE") == "0":
        off.append("NCCL_NVLS_ENABLE=0")
    off += [name for name in LEVELS if (variable(record, name) or "").upper() in ("0", "LOC")]
    if off:
        return warned(f"turned off by {listed(off)}", fix=f"unset {' '.join(o.partition('=')[0] for o in off)}")
    return passed("no variable turns P2P, shared memory or NVLS off")


CHECK = Check(section="links", title="NCCL fast paths", run=run)
