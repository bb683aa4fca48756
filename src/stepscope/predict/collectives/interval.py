"""The 80% interval of a prediction: how far published tables lie from the model, by what the time is made of.

Latency is what machines differ in (launching, hosts, firmware), rates hardly differ. The factors stand near the quantiles
of all published rows, by row and by source; docs/reference/validation.md has their coverage and what it does not show.
"""

from __future__ import annotations

import math
from itertools import pairwise

from stepscope.predict.collectives.costs import AlgorithmCost
from stepscope.predict.collectives.machine import Place

_REACH: tuple[tuple[float, float, float], ...] = (
    (0.00, 0.95, 1.06),
    (0.06, 0.95, 1.09),
    (0.20, 0.87, 1.11),
    (0.45, 0.90, 1.35),
    (0.72, 0.86, 1.65),
    (1.00, 0.86, 1.40),
)
"""Share of latency in the time; about the 10% and 90% quantile of measured / predicted."""

_UNKNOWN = 1.5
"""Widening of log(time) where fabric or links have no published figures, or the op was seen in one table at most."""
_RACK = 2.0
"""The same for an NVLink domain larger than a node: one table."""
_AMD_NETWORK = 2.0
"""The same for RCCL between nodes: its small messages were seen at 0.2 of the measured time."""
_BETWEEN, _KNEE = 1.4, (0.1, 0.9)
"""Between nodes, where latency and transfer both count, families of networks that no table here has were slower than
predicted more often than those here: wider upwards."""
_SELDOM = ("all_to_all", "gather", "scatter", "send_recv", "broadcast", "reduce_scatter")
_NODE = 8


def interval(op: str, where: Place, chosen: AlgorithmCost, *, extra_us: float) -> tuple[float, float]:
    """Factors on the predicted time: its 10% and 90% quantile."""
    latency = chosen.latency_us + extra_us
    share = latency / (latency + chosen.transfer_us)
    low, high = _at(share)
    wide = widening(op, where)
    slower = _BETWEEN if where.domains > 1 and _KNEE[0] < share < _KNEE[1] else 1.0
    return math.exp(math.log(low) * wide), math.exp(math.log(high) * wide * slower)


def widening(op: str, where: Place) -> float:
    """Factor on the logarithm of the interval's half-widths."""
    wide = 1.0
    if not where.known or op in _SELDOM:
        wide *= _UNKNOWN
    if where.domain_ranks > _NODE:
        wide *= _RACK
    if where.library == "rccl" and where.domains > 1:
        wide *= _AMD_NETWORK
    return wide


def _at(share: float) -> tuple[float, float]:
    for (x0, low0, high0), (x1, low1, high1) in pairwise(_REACH):
        if share <= x1:
            f = (share - x0) / (x1 - x0)
            return low0 + (low1 - low0) * f, high0 + (high1 - high0) * f
    return _REACH[-1][1:]
