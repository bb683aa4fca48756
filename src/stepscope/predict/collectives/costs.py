"""What one call costs, and the parts of a cost that several algorithms share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.collectives import Collective
from stepscope.predict.collectives import achieved, tuning_nccl, tuning_rccl
from stepscope.predict.collectives.machine import Place
from stepscope.predict.collectives.tuning_nccl import PROTOCOLS, Latencies

SIMPLE = PROTOCOLS.index("Simple")
LL128 = PROTOCOLS.index("LL128")
LL = PROTOCOLS.index("LL")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        p = achieved.ROUNDING
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
        return tuning_nccl.TREE if tree else tuning_nccl.RING
    return tuning_rccl.TREE if tree else tuning_rccl.RING


def step_us(place: Place, lat: Latencies, protocol: int) -> float:
    """One step inside a node; across nodes never below what posting one network operation takes."""
    own = (lat.pci_us if place.over_pcie else lat.link_us)[protocol]
    if place.domains == 1:
        return own
    return max(own, tuning_nccl.NET_OVERHEAD_US * (3 if protocol == SIMPLE else 1))


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
    return transfer_us(min(size_bytes, achieved.CHUNK_BYTES * place.generation.channels), gb_per_s)


def limit(place: Place, inside: float, net: float) -> str:
    """Which of two rates is the narrow one, in words."""
    if place.domains > 1 and net < inside:
        return "network"
    return "PCIe" if place.over_pcie else "links"
