"""What is done to make a network: ip and tc commands, kernel settings, TAP devices, in order. Pure.

Every host is a network namespace with one interface, eth0. Without delay eth0 is a veth whose other end is a port of a
bridge in the switch's namespace; with delay it is a TAP device that the router reads and writes (router.py). A token
bucket limits what leaves a host (on eth0) and what the switch sends to it (on its port, or in the router).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.records.network import MTU_BYTES, EmulatedNetwork

SWITCH = "switch"
INTERFACE = "eth0"
BURST_NS = 1_000_000
MIN_BURST_BYTES = 32_768
TRAINS_PER_BURST = 4
MAX_TRAIN_BYTES = 65_536
QUEUE_LATENCY = "200ms"

SETTINGS = {
    # The first namespace's default may be one that is not permitted in another (cubic), or one that paces (bbr).
    "ipv4/tcp_congestion_control": "reno",
    # What a connection did before the last pause, or an earlier one between the same hosts, must not show.
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
}


@dataclass(frozen=True, slots=True)
class NamespaceCommand:
    """``argv`` run in namespace ``where``. The argument after ``netns`` is the name of one of our namespaces."""

    where: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.where}] {' '.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class KernelSetting:
    """A value written to /proc/sys/net/``name`` in namespace ``where``. optional: not where the kernel has no such name."""

    where: str
    name: str
    value: str
    optional: bool = False

    def __str__(self) -> str:
        return f"[{self.where}] net/{self.name} = {self.value}"


@dataclass(frozen=True, slots=True)
class Tap:
    """A TAP device ``name`` made in namespace ``where`` and kept open for the router."""

    where: str
    name: str

    def __str__(self) -> str:
        return f"[{self.where}] tap {self.name}"


Step = NamespaceCommand | KernelSetting | Tap


def host_name(host: int) -> str:
    """Return the name of a host: of its namespace here, and its host name for the ranks on it."""
    return f"host{host}"


def address(host: int) -> str:
    """Return the IPv4 address of a host, in a network that no other namespace sees."""
    return f"10.77.0.{host + 1}"


def hardware_address(host: int) -> str:
    """Return the Ethernet address of eth0; its last byte is the host, which is all that the router looks at."""
    return f"02:00:00:00:00:{host:02x}"


def hosts_file(hosts: int) -> str:
    """Return the text of /etc/hosts for everybody in the network; torch's store asks for the mapped form of an address."""
    lines = ["127.0.0.1 localhost"]
    for host in range(hosts):
        lines += [f"{address(host)} {host_name(host)}", f"::ffff:{address(host)} {host_name(host)}"]
    return "\n".join(lines) + "\n"


def burst_bytes(rate_bits_per_s: int) -> int:
    """Return the size of a token bucket: 1 ms at the link's rate, and what passes at once after a pause.

    As small as the rate allows: up to this size messages see no limit, but while the kernel's timer is late a bucket that
    has run full loses rate. On a busy machine of two cores 0.5 ms lost 2 to 7%, 1 ms below 1%.
    """
    return max(MIN_BURST_BYTES, rate_bits_per_s * BURST_NS // 8 // 10**9)


def train_bytes(rate_bits_per_s: int) -> int:
    """Return the largest train of TCP segments that a host sends as one packet: a bucket has to hold several.

    A train waits until the bucket holds all of it; one as large as the bucket would leave no room for a late timer.
    """
    return min(burst_bytes(rate_bits_per_s) // TRAINS_PER_BURST, MAX_TRAIN_BYTES)


def plan(network: EmulatedNetwork, hosts: int) -> tuple[Step, ...]:
    """Return everything to do for ``hosts`` hosts, in namespaces that exist and are empty."""
    steps: list[Step] = []
    if not network.delay_ns:
        steps += [
            NamespaceCommand(SWITCH, ("ip", "link", "add", "br0", "mtu", str(MTU_BYTES), "type", "bridge")),
            NamespaceCommand(SWITCH, ("ip", "link", "set", "br0", "up")),
        ]
    for host in range(hosts):
        steps += _host(network, host, hosts)
    return tuple(steps)


def _host(network: EmulatedNetwork, host: int, hosts: int) -> Iterator[Step]:
    where, rate = host_name(host), network.rate_of(host)
    for name, value in SETTINGS.items():
        yield KernelSetting(where, name, value)
    yield KernelSetting(where, "ipv6/conf/all/disable_ipv6", "1", optional=True)
    yield NamespaceCommand(where, ("ip", "link", "set", "lo", "up"))
    if network.delay_ns:
        yield Tap(where, INTERFACE)
    else:
        yield from _cable(host, rate)
    yield NamespaceCommand(
        where,
        ("ip", "link", "set", INTERFACE, "address", hardware_address(host), "mtu", str(MTU_BYTES), "txqueuelen", "1000",
         "gso_max_size", str(train_bytes(rate))),
    )  # fmt: skip
    yield NamespaceCommand(where, ("ip", "addr", "add", f"{address(host)}/24", "dev", INTERFACE))
    yield NamespaceCommand(where, _bucket(INTERFACE, rate))
    yield NamespaceCommand(where, ("ip", "link", "set", INTERFACE, "up"))
    for other in range(hosts):
        if other != host:
            yield NamespaceCommand(
                where, ("ip", "neigh", "add", address(other), "lladdr", hardware_address(other), "dev", INTERFACE)
            )


def _cable(host: int, rate: int) -> Iterator[Step]:
    port = f"port{host}"
    yield NamespaceCommand(
        SWITCH,
        ("ip", "link", "add", port, "mtu", str(MTU_BYTES), "type", "veth",
         "peer", "name", INTERFACE, "netns", host_name(host)),
    )  # fmt: skip
    yield NamespaceCommand(SWITCH, _bucket(port, rate))
    yield NamespaceCommand(SWITCH, ("ip", "link", "set", port, "master", "br0", "up"))


def _bucket(interface: str, rate: int) -> tuple[str, ...]:
    return (
        "tc", "qdisc", "add", "dev", interface, "root", "tbf",
        "rate", f"{rate}bit", "burst", f"{burst_bytes(rate)}b", "latency", QUEUE_LATENCY,
    )  # fmt: skip
