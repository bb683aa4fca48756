"""Reductions in halves: by doubling distances, and inside the nodes before the rails between them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.predict.collectives import tuning_nccl
from stepscope.predict.collectives.costs import SIMPLE, Candidate, hop_us, latencies, limit, step_us, transfer_us
from stepscope.predict.collectives.machine import Place


def steps(op: str, ranks: int) -> int:
    """ceil(log2 n) of one half, twice that of an all-reduce."""
    return math.ceil(math.log2(ranks)) * (2 if op == "all_reduce" else 1)


def wire_factor(op: str, ranks: int) -> float:
    """(n - 1) / n of one half, twice that of an all-reduce: as much as a ring's."""
    return (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)


def halving_doubling(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    """Recursive halving and doubling: log2(n) steps. NCCL has it as PAT, for one GPU a node; otherwise for comparison."""
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


def hierarchical(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    """Reduce-scatter inside a node, one ring for each rail between the nodes, all-gather inside. For comparison."""
    if place.domains < 2 or place.domain_ranks < 2:
        return
    halves = 2 if op == "all_reduce" else 1
    g, nodes = place.domain_ranks, place.domains
    lat = latencies(place, tree=False)
    inside = halves * (g - 1) / g * size_bytes
    rail = halves * (nodes - 1) / nodes * size_bytes / g
    latency = lat.base_us[SIMPLE]
    latency += halves * (g - 1) * step_us(place, lat, SIMPLE)
    latency += halves * (nodes - 1) * hop_us(place, lat, SIMPLE)
    inside_us, rail_us = transfer_us(inside, place.ring), transfer_us(rail, place.gpu_net)
    yield Candidate(
        algorithm="hierarchical",
        protocol="Simple",
        latency_us=latency,
        transfer_us=inside_us + rail_us,
        limit=limit(place, 1 / inside_us if inside_us else 0, 1 / rail_us if rail_us else 0),
        offered=False,
    )
