"""MASTER_ADDR and MASTER_PORT can work."""

from __future__ import annotations

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    failed,
    integer,
    passed,
    several_hosts,
    skipped,
    variable,
)
from stepscope.records.environment import EnvironmentRecord

_LOOPBACK = ("localhost", "127.0.0.1", "127.0.1.1", "::1")


def run(record: EnvironmentRecord) -> Outcome:
    address, port = variable(record, "MASTER_ADDR"), variable(record, "MASTER_PORT")
    if address is None and port is None:
        return skipped("MASTER_ADDR is not set: the launcher chooses it")
    if port is not None and not 0 < (integer(record, "MASTER_PORT") or 0) < 65536:
        return failed(f"MASTER_PORT={port} is no port", fix="export MASTER_PORT=29500")
    if address is not None and address in _LOOPBACK and several_hosts(record):
        return failed(
            f"MASTER_ADDR={address} in a job on several hosts: each host would talk to itself",
            fix='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1), or the first host\'s name',
        )
    return passed(f"{address or 'address from the launcher'}, port {port or 'from the launcher'}")


CHECK = Check(section="launcher", title="master address", run=run)
