"""Messages without rings or trees: straight between the ranks that need them, to the next rank, over a full mesh."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import achieved, tuning_nccl, tuning_rccl
from stepscope.predict.collectives.costs import (
    LL,
    SIMPLE,
    Candidate,
    collective,
    hop_us,
    latencies,
    limit,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place, launched_by_one

AT_ONCE = 8
"""Peers that one NCCL channel serves at a time (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""


def direct(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    """Messages straight between the ranks that need them: all-to-all, gather and scatter, in rounds of peers."""
    n, g = place.ranks, place.domain_ranks
    peers = n - 1
    near = size_bytes * (g - 1) / n
    far = size_bytes * (n - g) / n
    rooted = op in ("gather", "scatter")
    # The root's bytes leave by its own adapter; in an all-to-all each GPU has its part of all of them.
    near_us = transfer_us(near, place.spread)
    far_us = transfer_us(far, place.gpu_net) if place.domains > 1 else 0.0
    lat = latencies(place, tree=False)
    rounds = math.ceil(peers / AT_ONCE)
    posts = (peers if rooted else 2 * peers) * (n if launched_by_one(place) else 1)
    for protocol, name in ((LL, "LL"), (SIMPLE, "Simple")):
        if protocol == LL and size_bytes / n > ll_most_bytes(place):
            continue
        hop = hop_us(place, lat, protocol) if place.domains > 1 else 0.0
        step = step_us(place, lat, protocol)
        slower = 2.0 if protocol == LL else 1.0
        yield Candidate(
            algorithm="direct",
            protocol=name,
            latency_us=lat.base_us[protocol] + min(peers, AT_ONCE) * step + rounds * hop + posts * achieved.POST_US,
            transfer_us=max(near_us, far_us) * slower if not rooted else (near_us + far_us) * slower,
            limit=limit(place, 1 / near_us if near_us else math.inf, 1 / far_us if far_us else math.inf),
        )


LL_MOST_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD: most bytes of a message on one channel that go in the LL protocol."""
CHANNELS_TO_PEER = 8
"""Inside a node, over NVLink; one across the network."""


def ll_most_bytes(place: Place) -> int:
    """Largest message to one peer that goes in the LL protocol."""
    return LL_MOST_BYTES * (CHANNELS_TO_PEER if place.domains == 1 else 1)


def send_recv(_op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    """Each rank sends S to the next one, all at once (what sendrecv_perf times); between nodes over one adapter."""
    lat = latencies(place, tree=False)
    adapters = place.gpu_net if place.domain_ranks > 1 else place.node_net
    # A GPU sends through its own adapter; a node with fewer adapters than GPUs still gives one message one adapter.
    one = max(adapters, place.node_net / adapter_count(place)) if place.domains > 1 else 0.0
    rate = min(place.pair, one) if place.domains > 1 else place.pair
    for protocol, name in ((LL, "LL"), (SIMPLE, "Simple")):
        if protocol == LL and size_bytes > ll_most_bytes(place):
            continue
        step = step_us(place, lat, protocol)
        hop = hop_us(place, lat, protocol) if place.domains > 1 else 0.0
        yield Candidate(
            algorithm="send_recv",
            protocol=name,
            latency_us=lat.base_us[protocol] + max(step, hop),
            transfer_us=transfer_us(size_bytes * (2 if protocol == LL else 1), rate),
            limit=limit(place, place.pair, one),
        )


def adapter_count(place: Place) -> float:
    fabric = place.fabric
    return (fabric.adapters_per_node if fabric else None) or place.domain_ranks


def all_pairs(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    """Every device reduces its part from, and returns it to, all others at once over a full mesh (MSCCL in RCCL)."""
    if not place.all_pairs:
        return
    algorithm = "direct" if op == "all_to_all" else "ring"  # the wire bytes are a ring's
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm=algorithm)
    steps = 2 if op == "all_reduce" else 1
    yield Candidate(
        algorithm="all_pairs",
        protocol="LL",
        latency_us=tuning_rccl.RING.base_us[LL] + steps * tuning_rccl.RING.link_us[LL],
        transfer_us=transfer_us(wire, place.spread * tuning_nccl.LL_RATE),
        limit="links",
    )
