"""What is done to make a network: ip and tc commands, kernel settings, TAP devices, in order. Pure.

Every host is a network namespace with one interface, eth0. Without delay eth0 is a veth whose other end is a port of a
bridge in the switch's namespace; with delay it is a TAP device that the router reads and writes (router.py). A token
bucket limits what leaves a host (on eth0) and what the switch sends to it (on its port, or in the router).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.records.network import MTU_BYTES, EmulatedNetwork

SWITCH = "switch"
INTERFACE = "eth0"
BURST_NS = 1_000_000
MIN_BURST_BYTES = 32_768
TRAINS_PER_BURST = 4
MAX_TRAIN_BYTES = 65_536
QUEUE_LATENCY = "200ms"

OPTIONAL = "ipv6/conf/all/disable_ipv6"
"""Not there in a kernel without it."""
SETTINGS = {
    # The first namespace's default may be one that is not permitted in another (cubic), or one that paces (bbr).
    "ipv4/tcp_congestion_control": "reno",
    # What a connection did before the last pause, or an earlier one between the same hosts, must not show.
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
    OPTIONAL: "1",
}


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """A line done in namespace ``where``: of ip or tc, in which the word after ``netns`` is the name of one of our
    namespaces; ``net/NAME = VALUE``, a value for /proc/sys; or ``tap NAME``, a device that is kept open for the router."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"[{self.where}] {self.line}"


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


def plan(network: EmulatedNetwork, hosts: int) -> tuple[NetworkStep, ...]:
    """Return everything to do for ``hosts`` hosts, in namespaces that exist and are empty."""
    steps: list[NetworkStep] = []
    if not network.delay_ns:
        steps += [
            NetworkStep(SWITCH, f"ip link add br0 mtu {MTU_BYTES} type bridge"),
            NetworkStep(SWITCH, "ip link set br0 up"),
        ]
    for host in range(hosts):
        steps += _host_steps(network, host, hosts)
    return tuple(steps)


def _host_steps(network: EmulatedNetwork, host: int, hosts: int) -> list[NetworkStep]:
    """Return the commands that make one host and its link."""
    rate, port = network.rate_of(host), f"port{host}"
    if network.delay_ns:
        device = [NetworkStep(host_name(host), f"tap {INTERFACE}")]
    else:
        peer = f"peer name {INTERFACE} netns {host_name(host)}"
        device = [
            NetworkStep(SWITCH, f"ip link add {port} mtu {MTU_BYTES} type veth {peer}"),
            NetworkStep(SWITCH, _rate_limit_command(port, rate)),
            NetworkStep(SWITCH, f"ip link set {port} master br0 up"),
        ]
    hardware = f"address {hardware_address(host)} mtu {MTU_BYTES} txqueuelen 1000 gso_max_size {train_bytes(rate)}"
    lines = [
        f"ip link set {INTERFACE} {hardware}",
        f"ip addr add {address(host)}/24 dev {INTERFACE}",
        _rate_limit_command(INTERFACE, rate),
        f"ip link set {INTERFACE} up",
        *(
            f"ip neigh add {address(other)} lladdr {hardware_address(other)} dev {INTERFACE}"
            for other in range(hosts)
            if other != host
        ),
    ]
    before = [*(f"net/{name} = {value}" for name, value in SETTINGS.items()), "ip link set lo up"]
    return [
        *(NetworkStep(host_name(host), line) for line in before),
        *device,
        *(NetworkStep(host_name(host), line) for line in lines),
    ]


def _rate_limit_command(interface: str, rate: int) -> str:
    shape = f"rate {rate}bit burst {burst_bytes(rate)}b latency {QUEUE_LATENCY}"
    return f"tc qdisc add dev {interface} root tbf {shape}"
