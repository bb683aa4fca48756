"""Speed of the fastest network interface, which bounds training across hosts."""

from __future__ import annotations

from stepscope.core.units import format_bandwidth
from stepscope.environment.checks._common import Check, Outcome, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord

SLOW_BITS_PER_S = 10_000_000_000


def run(record: EnvironmentRecord) -> Outcome:
    outward = [nic for nic in record.nics if nic.up and nic.kind not in ("loopback", "virtual")]
    if not outward:
        return skipped(why(record, "nics") if "nics" in record.unavailable else "no interface leads off this machine")
    known = [(nic.speed_bits_per_s, nic.name) for nic in outward if nic.speed_bits_per_s]
    if not known:
        return skipped(
            f"{', '.join(nic.name for nic in outward)}: the driver reports no speed (normal in a virtual machine)"
        )
    speed, name = max(known)
    found = f"{name}: {speed / 1e9:g} Gbit/s = {format_bandwidth(speed / 8)} per direction"
    if speed < SLOW_BITS_PER_S:
        return warned(f"{found}, slow for training across hosts", fix="stay on one host, or use a faster network")
    return passed(found)


CHECK = Check(section="network", title="network speed", run=run, order=4)
