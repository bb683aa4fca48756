"""Messages straight between the ranks that need them: all-to-all, gather and scatter, in rounds of peers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import achieved
from stepscope.predict.collectives.algorithms._common import (
    LL,
    SIMPLE,
    Algorithm,
    Candidate,
    hop_us,
    latencies,
    limit,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place, launched_by_one

AT_ONCE = 8
"""Peers that one NCCL channel serves at a time (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""


def _candidates(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
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


ALGORITHM = Algorithm(
    key="direct",
    summary="messages straight between the ranks that need them",
    ops=("all_to_all", "gather", "scatter"),
    candidates=_candidates,
)
