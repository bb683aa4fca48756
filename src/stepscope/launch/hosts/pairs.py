"""Every two hosts try each other: do they connect, how long a small message takes, how fast a few megabytes go.

Plain sockets, a few seconds in all: what it finds slow, ``stepscope comm --pairs`` measures well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.launch.hosts.conversation import Conversation
from stepscope.launch.hosts.survey import at_once
from stepscope.results.slow_pairs import EXPLAINED

TRIPS = 30
SIZE_BYTES = 8 << 20
PAIR_S = 90.0
SLOW = 1.8
"""A pair is slow when the typical one is this much faster: links degrade by halves, and one connection of tenths of a second
scatters too much for the finer limit of ``comm --pairs`` (results/slow_pairs.py)."""
SLOW_OF_TWO = 3.0
"""The same limit for the two directions between two hosts, which have nothing else to be compared with (on a busy machine of
two cores they differed by 2.6 without a fault, 2026-11)."""


@record
class TriedPair:
    """What was measured from ``source`` to ``target``. error: why they do not connect; then the numbers are None."""

    source: str
    target: str
    address: str | None
    interface: str | None = None
    round_trip_ns: int | None = None
    bytes_per_s: float | None = None
    error: str | None = None


def try_pairs(hosts: Sequence[Conversation], addresses: Mapping[str, Sequence[str]]) -> tuple[TriedPair, ...]:
    """Measure every ordered pair, each host in one pair at a time. addresses: of each host, those to try first first."""
    listening = {host.host: host.ask("listen", timeout_s=PAIR_S).fields for host in hosts}

    def both_ways(pair: tuple[Conversation, Conversation]) -> list[TriedPair]:
        a, b = pair
        return [_tried_pair(x, y.host, listening[y.host], addresses[y.host]) for x, y in ((a, b), (b, a))]

    pairs: list[TriedPair] = []
    for together in rounds(hosts):
        for tried in at_once(together, both_ways):
            pairs += tried
    order = {host.host: place for place, host in enumerate(hosts)}
    return tuple(sorted(pairs, key=lambda pair: (order[pair.source], order[pair.target])))


def rounds(hosts: Sequence[Conversation]) -> list[list[tuple[Conversation, Conversation]]]:
    """Return every pair once, in rounds in which no host is in two pairs (the circle method)."""
    circle: list[Conversation | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    pairings = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairings.append([(a, b) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return pairings


def _tried_pair(
    source: Conversation, target: str, listening: Mapping[str, object], addresses: Sequence[str]
) -> TriedPair:
    """Return what one host reached of another, by address."""
    asked = {"port": listening["port"], "token": listening["token"]}
    try:
        replies = source.ask("try", timeout_s=PAIR_S, addresses=list(addresses), **asked).fields["found"]
        address = next((candidate for candidate in addresses if "error" not in replies[candidate]), None)
        if address is None:
            errors = "; ".join(f"{candidate}: {replies[candidate]['error']}" for candidate in addresses)
            return TriedPair(source=source.host, target=target, address=None, error=errors or "no address is known")
        measured = source.ask(
            "measure", timeout_s=PAIR_S, address=address, trips=TRIPS, size_bytes=SIZE_BYTES, **asked
        ).fields["found"]
    except StepscopeError as error:
        return TriedPair(source=source.host, target=target, address=None, error=error.what)
    return TriedPair(source=source.host, target=target, address=address, **measured)


@record
class SlowSide:
    """A host whose pairs in one direction are slow (``out``, ``in``), or fail. typical: ``typical_rate``."""

    host: str
    direction: str
    bytes_per_s: float
    typical: float


def typical_rate(pairs: Sequence[TriedPair]) -> float:
    """Return the bytes per second that a pair without a fault reaches: the upper quartile of all; 0 where none is known.

    Not the median: one slow host of three is at an end of four pairs of six.
    """
    rates = [pair.bytes_per_s for pair in pairs if pair.bytes_per_s]
    return quantiles(rates, n=4, method="inclusive")[2] if len(rates) > 2 else max(rates, default=0.0)


def slow_pairs(pairs: Sequence[TriedPair]) -> tuple[TriedPair, ...]:
    """Return the pairs whose rate is below the typical one by more than ``SLOW`` (``SLOW_OF_TWO``)."""
    usual, limit = typical_rate(pairs), SLOW if len(pairs) > 2 else SLOW_OF_TWO
    return tuple(pair for pair in pairs if pair.bytes_per_s and pair.bytes_per_s * limit < usual)


def slow_ends(pairs: Sequence[TriedPair]) -> tuple[SlowSide, ...]:
    """Return the hosts that explain slow pairs: of three hosts or more, those of whose pairs in one direction most are
    slow."""
    slow = slow_pairs(pairs)
    hosts = list(dict.fromkeys(pair.source for pair in pairs))
    if len(hosts) < 3 or not slow:
        return ()
    sides = []
    for host in hosts:
        for direction, end in (("out", "source"), ("in", "target")):
            own = [pair for pair in pairs if getattr(pair, end) == host and pair.bytes_per_s]
            late = [pair for pair in own if pair in slow]
            if own and len(late) >= EXPLAINED * len(own):
                rate = median(pair.bytes_per_s or 0.0 for pair in late)
                sides.append(SlowSide(host=host, direction=direction, bytes_per_s=rate, typical=typical_rate(pairs)))
    return tuple(sides)
