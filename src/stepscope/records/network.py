"""What an emulated network is: rate, hosts, delay, slow hosts; its text form, and where ranks live in it. Pure."""

from __future__ import annotations

import re

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import parse_duration_ns

MTU_BYTES = 1500
ETHERNET_BYTES = 14
TCP_PAYLOAD_BYTES = MTU_BYTES - 20 - 20 - 12
"""Payload of one full packet, without the headers of IPv4 and of TCP with its timestamp option."""

MIN_RATE = 1_000_000
MAX_RATE = 100_000_000_000
MAX_DELAYED_RATE = 2_000_000_000
"""The highest rate with a delay: above it the router in Python is the limit (docs/reference/emulated-network.md)."""
MAX_DELAY_NS = 1_000_000_000
MAX_HOSTS = 64

EXAMPLES = "1gbit, 200mbit:4, 1gbit:2,delay=1ms or 1gbit:8,slow=3:200mbit"

_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>bit|kbit|mbit|gbit)")
_RATE_UNITS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}
_DURATION_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@record
class SlowHost:
    """A host whose link is slower than the others', both ways."""

    host: int
    rate_bits_per_s: int


@record
class EmulatedNetwork:
    """Hosts with one link each to one switch.

    rate_bits_per_s: of every link, each way, Ethernet headers included. hosts: None = one host for each rank.
    delay_ns: one way, from any host to any other. ``str()`` is the canonical text: a part of a cell's identity.
    """

    rate_bits_per_s: int
    hosts: int | None = None
    delay_ns: int = 0
    slow: tuple[SlowHost, ...] = ()

    def __str__(self) -> str:
        hosts = "" if self.hosts is None else f":{self.hosts}"
        delay = f",delay={_exact_text(self.delay_ns, _DURATION_UNITS)}" if self.delay_ns else ""
        slow = "".join(f",slow={s.host}:{_exact_text(s.rate_bits_per_s, _RATE_UNITS)}" for s in self.slow)
        return f"{_exact_text(self.rate_bits_per_s, _RATE_UNITS)}{hosts}{delay}{slow}"

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload that one TCP connection can carry over one link: 95.6% of rate / 8, the rest are headers."""
        return self.rate_bits_per_s / 8 * TCP_PAYLOAD_BYTES / (MTU_BYTES + ETHERNET_BYTES)

    def rate_of(self, host: int) -> int:
        """Bits/s of the link of ``host``."""
        return next((s.rate_bits_per_s for s in self.slow if s.host == host), self.rate_bits_per_s)


def parse_network(text: str) -> EmulatedNetwork:
    """Parse a network written as ``RATE[:HOSTS][,delay=TIME][,slow=HOST:RATE]...``. Raises UsageError."""
    first, *rest = [part.strip() for part in text.strip().lower().split(",")]
    rate_text, colon, hosts_text = first.partition(":")
    hosts = _host_count(hosts_text, text) if colon else None
    delay_ns: int | None = None
    slow: list[SlowHost] = []
    for part in rest:
        name, _, value = part.partition("=")
        if name == "delay" and delay_ns is None:
            delay_ns = _delay_ns(value, text)
        elif name == "slow":
            slow.append(_slow_host(value, text, hosts))
        else:
            why = "delay is given twice" if name == "delay" else f"{part!r} is neither delay=TIME nor slow=HOST:RATE"
            raise _bad_network_error(text, why)
    if len({s.host for s in slow}) < len(slow):
        raise _bad_network_error(text, "a host is slow twice")
    network = EmulatedNetwork(
        rate_bits_per_s=_rate_bits_per_s(rate_text, text),
        hosts=hosts,
        delay_ns=delay_ns or 0,
        slow=tuple(sorted(slow, key=lambda s: s.host)),
    )
    if network.delay_ns and network.rate_bits_per_s > MAX_DELAYED_RATE:
        raise UsageError(
            f"{text!r} asks for a delay at more than {_exact_text(MAX_DELAYED_RATE, _RATE_UNITS)}",
            why="with a delay every packet passes a router written in Python, which would limit the rate",
            fix="leave the delay out, or ask for a lower rate",
        )
    return network


def hosts_for(network: EmulatedNetwork, world_size: int) -> int:
    """Return the number of hosts that ``world_size`` ranks are put on: never more hosts than ranks."""
    return world_size if network.hosts is None else min(network.hosts, world_size)


def host_of_ranks(network: EmulatedNetwork, world_size: int) -> tuple[int, ...]:
    """Return the host of each rank: neighbours share a host, and hosts differ by one rank at most."""
    hosts = hosts_for(network, world_size)
    return tuple(rank * hosts // world_size for rank in range(world_size))


def obstacle(network: EmulatedNetwork, world_size: int) -> str | None:
    """Return why ``world_size`` ranks cannot be put into ``network``, or None when they can."""
    hosts = hosts_for(network, world_size)
    absent = [s.host for s in network.slow if s.host >= hosts]
    if absent:
        last = "host 0 alone" if hosts == 1 else f"hosts 0 to {hosts - 1}"
        return f"host {absent[0]} of network {network} does not exist: {world_size} ranks are on {last}"
    if hosts > MAX_HOSTS:
        return f"network {network} would have {hosts} hosts for {world_size} ranks; at most {MAX_HOSTS} are emulated"
    return None


def _rate_bits_per_s(text: str, whole: str) -> int:
    match = _RATE.fullmatch(text)
    if match is None:
        in_bytes = re.fullmatch(r"[\d.]+\s*[kmg]i?(b|bps|b/s|bit/s)", text)
        raise _bad_network_error(
            whole, f"{text!r} is not a rate" + (": rates end in kbit, mbit or gbit" if in_bytes else "")
        )
    rate = round(float(match["number"]) * _RATE_UNITS[match["unit"]])
    if not MIN_RATE <= rate <= MAX_RATE:
        raise _bad_network_error(
            whole, f"{text} is outside {_exact_text(MIN_RATE, _RATE_UNITS)} to {_exact_text(MAX_RATE, _RATE_UNITS)}"
        )
    return rate


def _host_count(text: str, whole: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MAX_HOSTS:
        raise _bad_network_error(whole, f"{text!r} is not a number of hosts from 2 to {MAX_HOSTS}")
    return int(text)


def _delay_ns(text: str, whole: str) -> int:
    try:
        # A bare number would be seconds: nobody's network.
        delay_ns = 0 if text.isdecimal() else parse_duration_ns(text)
    except UsageError:
        delay_ns = 0
    if not 0 < delay_ns <= MAX_DELAY_NS:
        raise _bad_network_error(whole, f"{text!r} is not a one-way delay up to 1 s with its unit (500us, 1ms)")
    return delay_ns


def _slow_host(text: str, whole: str, hosts: int | None) -> SlowHost:
    host, colon, rate = text.partition(":")
    if not colon or not host.isdecimal():
        raise _bad_network_error(whole, f"slow={text} is not slow=HOST:RATE")
    if hosts is not None and int(host) >= hosts:
        raise _bad_network_error(whole, f"host {host} does not exist: hosts are 0 to {hosts - 1}")
    return SlowHost(host=int(host), rate_bits_per_s=_rate_bits_per_s(rate, whole))


def _bad_network_error(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not an emulated network", why=why, fix=f"write {EXAMPLES}")


def _exact_text(value: int, units: dict[str, int]) -> str:
    """Write ``value`` in the largest unit that needs no fraction: the same value has one text."""
    unit, scale = next((u, s) for u, s in units.items() if value % s == 0)
    return f"{value // scale}{unit}"


def hosts_of(text: str | None, world_size: int) -> int | None:
    """Return the number of emulated hosts that the ranks are on, or None without a network."""
    return None if text is None else hosts_for(parse_network(text), world_size)
