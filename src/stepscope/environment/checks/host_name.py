"""The own host name resolves to an address of this machine; gloo and torchrun's rendezvous rely on it."""

from __future__ import annotations

import ipaddress

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    listed,
    passed,
    several_hosts,
    variable,
    warned,
    why,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    addresses = record.hostname_addresses
    fix = f"add {record.host} to /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    if not addresses:
        return warned(f"{why(record, 'hostname_addresses', 'host')}; gloo then falls back to loopback", fix=fix)
    found = f"{record.host} is {listed(addresses, at_most=2)}"
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        if several_hosts(record) and variable(record, "GLOO_SOCKET_IFNAME") is None:
            return warned(
                f"{found}: other hosts cannot reach gloo there",
                fix="set GLOO_SOCKET_IFNAME to the NIC's name",
            )
        return passed(f"{found}, enough for ranks on one host")
    own = {address for nic in record.nics for address in nic.addresses}
    if own and not own & set(addresses):
        return warned(f"{found}, which is no address of this machine: gloo cannot listen there", fix=fix)
    return passed(found)


CHECK = Check(section="network", title="host name", run=run, order=2)
