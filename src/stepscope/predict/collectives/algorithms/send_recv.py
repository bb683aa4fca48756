"""Each rank sends S to the next one, all at once (what sendrecv_perf times); between nodes over one adapter."""

from __future__ import annotations

from collections.abc import Iterator

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
from stepscope.predict.collectives.algorithms.direct import ll_most_bytes
from stepscope.predict.collectives.machine import Place


def _candidates(_op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
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


ALGORITHM = Algorithm(
    key="send_recv", summary="one message to the next rank", ops=("send_recv",), candidates=_candidates
)
