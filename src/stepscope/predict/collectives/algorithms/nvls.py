"""Reduction inside the NVLink switch (NVLS); across nodes a tree of such nodes, or SHARP in the network as well."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import achieved, tuning_nccl
from stepscope.predict.collectives.costs import Candidate, fill_us, transfer_us
from stepscope.predict.collectives.machine import Place

_HEADS = 8
_LEAST = 3


def algorithm_rate(place: Place) -> float:
    """GB/s of S that the switch of one domain reduces and returns; 0: it cannot.

    NCCL gives a domain one channel for each GPU and loses one of them to the pipeline: (h - 1) / h, at most 8 heads.
    """
    if place.switch_peak is None or place.domain_ranks < _LEAST:
        return 0.0
    heads = min(place.domain_ranks, _HEADS)
    efficiency = place.generation.nvls_rate * achieved.SWITCH_SHARE
    return place.switch_peak * efficiency * (heads - 1) / heads


def tuner_rate(place: Place) -> float:
    """GB/s of S in NCCL's own table: one channel for each GPU at a rate its search tries."""
    gen, heads = place.generation, round(min(place.domain_ranks, _HEADS))
    links = place.ring / achieved.RING_SHARE * heads / (heads - 1)
    speed = next((s for s in gen.nvls_speeds if s * heads <= links), gen.nvls_speeds[-1])
    channel = speed * gen.nvls_rate * (heads - 1) / heads * 2
    if place.domains > 1:
        net = place.node_net / heads * (2 if place.domains == 2 else 1)
        channel = min(channel, net, gen.nvls_tree_channel[place.scale])
    return channel * heads * place.ranks / (2 * (place.ranks - 1))


def nvls(_op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    inside = algorithm_rate(place)
    if inside == 0:
        return
    by_table = transfer_us(size_bytes, tuner_rate(place))
    fill = fill_us(place, size_bytes, inside)
    latency = tuning_nccl.NVLS_US + fill
    if place.domains == 1:
        yield Candidate(
            algorithm="nvls",
            protocol="Simple",
            latency_us=latency,
            transfer_us=transfer_us(size_bytes, inside),
            limit="NVLink switch",
            tuner_us=tuning_nccl.NVLS_US + by_table,
        )
        return
    hop = tuning_nccl.NVLS_TREE_NET_US + 2 * place.net_latency_us
    net = place.node_net if place.domains == 2 else place.node_net / 2
    hops = 2 * math.floor(math.log2(place.domains))
    full = min(1.0, size_bytes / achieved.TREE_CHUNK_BYTES)
    latency = tuning_nccl.NVLS_US + full * (2 * fill + hops * fill_us(place, size_bytes, net))
    yield Candidate(
        algorithm="nvls_tree",
        protocol="Simple",
        latency_us=latency + hops * hop,
        transfer_us=transfer_us(size_bytes, min(inside, net)),
        limit="network" if net < inside else "NVLink switch",
        tuner_us=tuning_nccl.NVLS_US + hops * hop + by_table,
    )
    yield Candidate(
        algorithm="nvls_sharp",
        protocol="Simple",
        latency_us=latency + hop,
        transfer_us=transfer_us(size_bytes, min(inside, place.node_net)),
        limit="network" if place.node_net < inside else "NVLink switch",
        offered=place.sharp,
    )
