"""Recursive halving and doubling: log2(n) steps. NCCL has it as PAT, for one GPU a node; otherwise for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import tuning_nccl
from stepscope.predict.collectives.algorithms._common import (
    SIMPLE,
    Algorithm,
    Candidate,
    hop_us,
    latencies,
    limit,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place


def steps(op: str, ranks: int) -> int:
    """ceil(log2 n) of one half, twice that of an all-reduce."""
    return math.ceil(math.log2(ranks)) * (2 if op == "all_reduce" else 1)


def wire_factor(op: str, ranks: int) -> float:
    """(n - 1) / n of one half, twice that of an all-reduce: as much as a ring's."""
    return (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)


def _candidates(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    lat = latencies(place, tree=True)
    wire = size_bytes * wire_factor(op, place.ranks)
    if place.library == "nccl" and place.domains == place.ranks > 1 and op != "all_reduce":
        base = tuning_nccl.PAT_BASE_US + tuning_nccl.PAT_LINEAR_US * place.ranks
        hops = math.floor(math.log2(place.domains)) * hop_us(place, lat, SIMPLE)
        yield Candidate(
            algorithm="pat",
            protocol="Simple",
            latency_us=base + hops / tuning_nccl.PAT_NET_DIVISOR,
            transfer_us=transfer_us(wire, place.node_net * tuning_nccl.PAT_RATE),
            limit="network",
        )
        return
    inside = steps(op, math.ceil(place.domain_ranks)) if place.domain_ranks > 1 else 0
    across = steps(op, place.ranks) - inside
    # In a round between nodes all ranks of a node send at once; the first such round carries half of S.
    rate = min(place.pair, place.gpu_net) if place.domains > 1 else place.pair
    yield Candidate(
        algorithm="halving_doubling",
        protocol="Simple",
        latency_us=lat.base_us[SIMPLE] + inside * step_us(place, lat, SIMPLE) + across * hop_us(place, lat, SIMPLE),
        transfer_us=transfer_us(wire, rate),
        limit=limit(place, place.pair, place.gpu_net),
        offered=False,
    )


ALGORITHM = Algorithm(
    key="halving_doubling",
    summary="recursive halving and doubling",
    ops=("all_reduce", "all_gather", "reduce_scatter"),
    candidates=_candidates,
)
