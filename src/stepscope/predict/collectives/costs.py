"""What one call costs: by one algorithm, and as every predictor returns it, with its 80% interval.

Latency is what machines differ in (launching, hosts, firmware), rates hardly differ: the interval follows from what the
time is made of. Its factors stand near the quantiles of all published rows, by row and by source;
docs/reference/validation.md has their coverage and what it does not show.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.collectives import Collective
from stepscope.core.dataclass import record
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.constants import PROTOCOLS, Latencies
from stepscope.predict.collectives.machine import Place

SIMPLE = PROTOCOLS.index("Simple")
LL128 = PROTOCOLS.index("LL128")
LL = PROTOCOLS.index("LL")


@record
class AlgorithmCost:
    """One algorithm with one protocol. offered: the library runs it for this op and machine; others are for comparison.

    latency_us: what a call of no bytes takes; transfer_us: bytes through the narrowest link at the rate reached there.
    tuner_us: what the library's own table says, by which it chooses; None: it has no other estimate.
    """

    algorithm: str
    protocol: str
    latency_us: float
    transfer_us: float
    limit: str
    offered: bool = True
    tuner_us: float | None = None

    @property
    def chosen_by_us(self) -> float:
        return self.time_us if self.tuner_us is None else self.tuner_us

    @property
    def time_us(self) -> float:
        p = constants.ROUNDING
        return float((self.latency_us**p + self.transfer_us**p) ** (1 / p))

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.protocol}"


@cache
def collective(op: str) -> Collective:
    """The collective's spec; looked up once, a registry asks the installed packages each time."""
    return COLLECTIVES.load(op)


def transfer_us(wire_bytes: float, gb_per_s: float) -> float:
    return wire_bytes / gb_per_s / 1e3


def latencies(place: Place, *, tree: bool) -> Latencies:
    if place.library == "nccl":
        return constants.TREE if tree else constants.RING
    return constants.RCCL_TREE if tree else constants.RCCL_RING


def step_us(place: Place, lat: Latencies, protocol: int) -> float:
    """One step inside a node; across nodes never below what posting one network operation takes."""
    own = (lat.pci_us if place.over_pcie else lat.link_us)[protocol]
    if place.domains == 1:
        return own
    return max(own, constants.NET_OVERHEAD_US * (3 if protocol == SIMPLE else 1))


def hop_us(place: Place, lat: Latencies, protocol: int) -> float:
    """One step between nodes; Simple pays the fabric's latency twice (data, then the flush)."""
    return lat.net_us[protocol] + place.net_latency_us * (2 if protocol == SIMPLE else 1)


def protocols(place: Place) -> tuple[int, ...]:
    """LL128 needs links and adapters that keep 128 bytes together: NVLink, and a fabric that allows it; never PCIe."""
    allowed = PROTOCOLS if place.fabric is None else place.fabric.protocols
    without = ("LL128",) if place.library == "rccl" or place.over_pcie else ()
    return tuple(PROTOCOLS.index(name) for name in allowed if name not in without)


def fill_us(place: Place, size_bytes: int, gb_per_s: float) -> float:
    """One stage of a pipeline before it moves at full rate: a chunk of every channel, less for sizes below that."""
    return transfer_us(min(size_bytes, constants.CHUNK_BYTES * place.generation.channels), gb_per_s)


def limit(place: Place, inside: float, net: float) -> str:
    """Say which of two rates is the narrow one."""
    if place.domains > 1 and net < inside:
        return "network"
    return "PCIe" if place.over_pcie else "links"


Z80 = 1.2816
"""Half-width of an 80% interval in standard deviations."""


@record
class Alternative:
    """Another way to do the same call. offered: the library would run it; else it stands for comparison only."""

    algorithm: str
    protocol: str
    time_ns: float
    offered: bool


@record
class Price:
    """Time of one collective call and its 80% interval, ns."""

    time_ns: float
    low_ns: float
    high_ns: float


@record
class Predicted(Price):
    """A price and where it comes from.

    algorithm: ``ring``, ``tree``, ``gloo``, ...: what the time was computed for. why: why this one, and from what.
    notes: what the reader must know before trusting it (extrapolated, another world size, ...).
    protocol: of NCCL and RCCL. busbw_bytes_per_s: of ``time_ns``; None for ops without payload.
    alternatives: every other candidate, fastest first.
    """

    algorithm: str
    why: str
    notes: tuple[str, ...] = ()
    protocol: str | None = None
    busbw_bytes_per_s: float | None = None
    alternatives: tuple[Alternative, ...] = ()


_REACH: tuple[tuple[float, float, float], ...] = (
    (0.00, 0.95, 1.06),
    (0.06, 0.95, 1.09),
    (0.20, 0.87, 1.11),
    (0.45, 0.90, 1.35),
    (0.72, 0.86, 1.65),
    (1.00, 0.86, 1.40),
)
"""Share of latency in the time; about the 10% and 90% quantile of measured / predicted."""

_UNKNOWN = 1.5
"""Widening of log(time) where fabric or links have no published figures, or the op was seen in one table at most."""
_RACK = 2.0
"""The same for an NVLink domain larger than a node: one table."""
_AMD_NETWORK = 2.0
"""The same for RCCL between nodes: its small messages were seen at 0.2 of the measured time."""
_BETWEEN, _KNEE = 1.4, (0.1, 0.9)
"""Between nodes, where latency and transfer both count, families of networks that no table here has were slower than
predicted more often than those here: wider upwards."""
_SELDOM = ("all_to_all", "gather", "scatter", "send_recv", "broadcast", "reduce_scatter")
_NODE = 8


def interval(op: str, where: Place, chosen: AlgorithmCost, *, extra_us: float) -> tuple[float, float]:
    """Return factors on the predicted time: its 10% and 90% quantile."""
    latency = chosen.latency_us + extra_us
    share = latency / (latency + chosen.transfer_us)
    low, high = _reach_factors(share)
    wide = widening(op, where)
    slower = _BETWEEN if where.domains > 1 and _KNEE[0] < share < _KNEE[1] else 1.0
    return math.exp(math.log(low) * wide), math.exp(math.log(high) * wide * slower)


def widening(op: str, where: Place) -> float:
    """Factor on the logarithm of the interval's half-widths."""
    wide = 1.0
    if not where.sourced or op in _SELDOM:
        wide *= _UNKNOWN
    if where.domain_ranks > _NODE:
        wide *= _RACK
    if where.library == "rccl" and where.domains > 1:
        wide *= _AMD_NETWORK
    return wide


def _reach_factors(share: float) -> tuple[float, float]:
    for (x0, low0, high0), (x1, low1, high1) in pairwise(_REACH):
        if share <= x1:
            f = (share - x0) / (x1 - x0)
            return low0 + (low1 - low0) * f, high0 + (high1 - high0) * f
    return _REACH[-1][1:]
