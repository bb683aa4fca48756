"""Reduce-scatter inside a node, one ring for each rail between the nodes, all-gather inside. For comparison."""

from __future__ import annotations

from collections.abc import Iterator

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


def _candidates(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
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


ALGORITHM = Algorithm(
    key="hierarchical",
    summary="inside the nodes first, then one ring for each rail",
    ops=("all_reduce", "all_gather", "reduce_scatter"),
    candidates=_candidates,
)
