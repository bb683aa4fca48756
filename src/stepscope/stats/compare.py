"""Does one side tend to be larger: Mann-Whitney U."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.stats.order import Samples, as_array

MIN_REPLICATES = 4
"""A side: with 3 + 3 replicates the smallest two-sided p is 2 / C(6,3) = 0.10, so no result could be
significant.
"""

_EXACT_UP_TO = 40  # replicates on both sides together


@dataclass(frozen=True, slots=True, kw_only=True)
class MannWhitney:
    """u: pairs in which the first sample is larger (ties count half); p_value: two-sided."""

    u: float
    p_value: float
    exact: bool


def mann_whitney(first: Samples, second: Samples) -> MannWhitney | Unavailable:
    """Mann-Whitney U test that neither side tends to be larger; refused below 4 + 4 replicates.

    A replicate is a run, a round or a block of steps, never a single step: steps of one run depend on each
    other. Exact (ties included: all ways of dealing the pooled mid-ranks) up to 40 replicates, then the
    normal approximation with tie and continuity correction.
    """
    a, b = as_array(first), as_array(second)
    if min(a.size, b.size) < MIN_REPLICATES:
        return Unavailable(
            f"{a.size} + {b.size} replicates: below {MIN_REPLICATES} + {MIN_REPLICATES} no difference can be told"
            " from chance"
        )
    doubled = _doubled_mid_ranks(np.concatenate([a, b]))
    n, m = int(a.size), int(b.size)
    rank_sum = int(doubled[:n].sum())
    u = (rank_sum - n * (n + 1)) / 2
    exact = n + m <= _EXACT_UP_TO
    p_value = _exact_p(doubled, n, rank_sum) if exact else _normal_p(doubled, n, m, u)
    return MannWhitney(u=u, p_value=p_value, exact=exact)


def _doubled_mid_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the mid-rank of each value: integers even where ties share a rank."""
    ordered = np.sort(values)
    left = np.searchsorted(ordered, values, side="left")
    right = np.searchsorted(ordered, values, side="right")
    return np.asarray(left + right + 1, dtype=np.int64)


def _exact_p(doubled: NDArray[np.int64], n: int, rank_sum: int) -> float:
    """Share of all ways to pick n of the doubled ranks whose sum is at least as far from the mean as
    ``rank_sum``.
    """
    ranks = [int(r) for r in doubled]
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(n))]
    for rank in ranks:
        for picked in range(n, 0, -1):
            for total, count in ways[picked - 1].items():
                ways[picked][total + rank] = ways[picked].get(total + rank, 0) + count
    size = len(ranks)
    twice_mean = n * (size + 1)  # of doubled ranks: n x (size + 1), since the mean doubled rank is size + 1
    distance = abs(rank_sum - twice_mean)
    extreme = sum(count for total, count in ways[n].items() if abs(total - twice_mean) >= distance)
    return extreme / math.comb(size, n)


def _normal_p(doubled: NDArray[np.int64], n: int, m: int, u: float) -> float:
    size = n + m
    _, counts = np.unique(doubled, return_counts=True)
    ties = float((counts.astype(float) ** 3 - counts).sum())
    variance = n * m / 12.0 * (size + 1 - ties / (size * (size - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return min(1.0, 2.0 * (1.0 - NormalDist().cdf(z)))
