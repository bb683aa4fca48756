"""Rings through all ranks: bandwidth-optimal, latency grows with the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.predict.collectives import tuning_nccl, tuning_rccl
from stepscope.predict.collectives.costs import (
    LL,
    LL128,
    SIMPLE,
    Candidate,
    collective,
    fill_us,
    hop_us,
    latencies,
    limit,
    protocols,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place
from stepscope.predict.collectives.tuning_nccl import PROTOCOLS

_CHAINS = ("broadcast", "reduce")


def _rate(place: Place, protocol: int) -> float:
    """GB/s on the wire of one GPU; every ring crosses each node's adapters once."""
    wire = min(place.ring, place.node_net) if place.domains > 1 else place.ring
    if place.library == "rccl":
        return wire * tuning_rccl.RING_RATE[protocol]
    gen, scale = place.generation, place.scale
    if protocol == LL:
        return min(wire * tuning_nccl.LL_RATE, gen.ll_max[scale])
    if protocol == LL128:
        return min(wire * tuning_nccl.LL128_RATE, gen.channels * gen.ring_ll128_channel[scale])
    return wire


def latency_us(op: str, place: Place, protocol: int) -> float:
    """Steps of METRICS: 2(n-1) of an all-reduce, n-1 of the others; each lap crosses every node boundary but one."""
    lat = latencies(place, tree=False)
    steps = collective(op).steps(world_size=place.ranks, algorithm="chain" if op in _CHAINS else "ring")
    hops = (place.domains - 1) * (2 if op == "all_reduce" else 1)
    inside = step_us(place, lat, protocol)
    if op in _CHAINS and protocol == SIMPLE:
        inside = latencies(place, tree=True).link_us[protocol]  # a chunk has to arrive before it is passed on
    waits = (steps - hops) * inside + hops * hop_us(place, lat, protocol)
    if place.library == "nccl" and protocol == SIMPLE and place.domains > 1 and op == "all_reduce":
        waits *= tuning_nccl.RING_PLATEAU[place.generation.key]
    return lat.base_us[protocol] + waits


def ring(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    chain = op in _CHAINS
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm="chain" if chain else "ring")
    for protocol in protocols(place):
        rate = _rate(place, protocol)
        latency = latency_us(op, place, protocol)
        fill = fill_us(place, size_bytes, rate) if protocol == SIMPLE else 0.0
        yield Candidate(
            algorithm="ring",
            protocol=PROTOCOLS[protocol],
            latency_us=latency + fill,
            transfer_us=transfer_us(wire, rate),
            tuner_us=latency + transfer_us(wire, rate) if place.library == "nccl" else None,
            limit=limit(place, place.ring, place.node_net),
        )
