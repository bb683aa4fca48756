"""Double binary tree over the nodes, chains inside them: few steps across the network, less bandwidth inside."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import achieved, tuning_nccl, tuning_rccl
from stepscope.predict.collectives.costs import (
    LL,
    LL128,
    SIMPLE,
    Candidate,
    collective,
    hop_us,
    latencies,
    limit,
    protocols,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place
from stepscope.predict.collectives.tuning_nccl import PROTOCOLS


def mid_size_share(protocol: int, size_bytes: int) -> float:
    """NCCL's own correction of a tree's rate, between its powers of two on a straight line in log(size)."""
    shares = tuning_nccl.TREE_MID_SIZES[protocol]
    at = max(math.log2(max(size_bytes, 64) / 64), 0)
    low = int(at)
    if low >= len(shares) - 1:
        return 1.0
    return shares[low] + (shares[low + 1] - shares[low]) * (at - low)


def _rate(place: Place, protocol: int, size_bytes: int) -> float:
    """GB/s on the wire of one GPU, 2 S in all.

    Between two nodes each way carries S; between more, a node is a leaf of one tree and inside the other: 2 S.
    """
    net = place.node_net * (2 if place.domains == 2 else 1) if place.domains > 1 else math.inf
    wire = min(place.ring, net)
    if place.library == "rccl":
        return wire * tuning_rccl.TREE_RATE[0 if place.domains <= 2 else 1][protocol]
    gen, scale = place.generation, place.scale
    rate = min(place.ring * tuning_nccl.TREE_RATE, net, gen.channels * gen.tree_channel[scale])
    if protocol == LL:
        rate = min(rate * tuning_nccl.TREE_LL_RATE, gen.ll_max[scale])
    if protocol == LL128:
        rate = min(rate * tuning_nccl.LL128_TREE_RATE[scale], gen.channels * gen.tree_ll128_channel[scale])
    # With Simple the whole chunks of latency_us are what NCCL's correction stands for.
    return rate if protocol == SIMPLE else rate * mid_size_share(protocol, size_bytes)


def _tuner_us(place: Place, protocol: int, wire: float, size_bytes: int) -> float | None:
    """NCCL's own estimate: short steps, and its correction of the rate for every protocol."""
    if place.library != "nccl":
        return None
    rate = _rate(place, protocol, size_bytes)
    if protocol == SIMPLE:
        rate *= mid_size_share(protocol, size_bytes)
    return latency_us(place, protocol) + transfer_us(wire, rate)


def latency_us(place: Place, protocol: int, size_bytes: int = 0) -> float:
    """Up and down the chain of a node and the tree of nodes; large messages wait for whole chunks at every step."""
    lat = latencies(place, tree=True)
    inside, across = step_us(place, lat, protocol), hop_us(place, lat, protocol)
    if protocol != LL and place.library == "nccl":
        # LL128 data are taken as they arrive; only between nodes are they passed on by whole chunks.
        full = min(1.0, size_bytes / achieved.TREE_CHUNK_BYTES)
        if protocol == SIMPLE:
            inside += full * max(achieved.TREE_CHUNK_STEP_US - inside, 0)
        across += full * max(achieved.TREE_CHUNK_STEP_US - lat.net_us[protocol], 0)
    hops = math.floor(math.log2(place.domains))
    return lat.base_us[protocol] + 2 * ((place.domain_ranks - 1) * inside + hops * across)


def tree(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    # RCCL keeps trees with Simple off on one node of the MI300 series.
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm="tree")
    for protocol in protocols(place):
        if place.library == "rccl" and protocol == SIMPLE and place.domains == 1:
            continue
        yield Candidate(
            algorithm="tree",
            protocol=PROTOCOLS[protocol],
            latency_us=latency_us(place, protocol, size_bytes),
            transfer_us=transfer_us(wire, _rate(place, protocol, size_bytes)),
            tuner_us=_tuner_us(place, protocol, wire, size_bytes),
            limit=limit(place, place.ring, place.node_net * (2 if place.domains == 2 else 1)),
        )
