"""GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name interfaces that exist and are up."""

from __future__ import annotations

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    failed,
    listed,
    passed,
    skipped,
    variable,
    why,
)
from stepscope.records.environment import EnvironmentRecord, NicFact


def run(record: EnvironmentRecord) -> Outcome:
    settings = {name: variable(record, name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    if not any(settings.values()):
        return passed("not set: gloo follows the host name, NCCL takes the first that fits")
    interfaces = tuple(nic for nic in record.nics if not nic.rdma)
    if not interfaces:
        return skipped(why(record, "nics"))
    for name, value in settings.items():
        if value is None:
            continue
        chosen = gloo_choice(value, interfaces) if name.startswith("GLOO") else nccl_choice(value, interfaces)
        if not chosen:
            up = [nic.name for nic in interfaces if nic.up and nic.kind != "loopback"]
            return failed(
                f"{name}={value} matches no interface that is up", fix=f"choose from: {listed(up, at_most=8)}"
            )
    return passed(", ".join(f"{name}={value}" for name, value in settings.items() if value))


def gloo_choice(value: str, nics: tuple[NicFact, ...]) -> tuple[str, ...]:
    """gloo takes full names, separated by commas."""
    names = value.split(",")
    return tuple(nic.name for nic in nics if nic.up and nic.name in names)


def nccl_choice(value: str, nics: tuple[NicFact, ...]) -> tuple[str, ...]:
    """NCCL takes prefixes; ``=`` before the list means full names, ``^`` all but these (NCCL user guide)."""
    excluded, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    names = [name.partition(":")[0] for name in rest.split(",") if name]

    def hit(nic: NicFact) -> bool:
        return any(nic.name == name if exact else nic.name.startswith(name) for name in names)

    return tuple(nic.name for nic in nics if nic.up and hit(nic) != excluded)


CHECK = Check(section="network", title="socket interface", run=run, order=3)
