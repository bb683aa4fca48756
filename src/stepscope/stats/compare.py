"""Is one faster than the other: interleaved rounds, A/A spread, Mann-Whitney U."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.stats.bootstrap import RESAMPLES, Ratio, percentile_interval
from stepscope.stats.order import Samples, as_array, median_interval

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A against B over interleaved rounds.

    ratio: median over rounds of median(A) / median(B) of the same round, with its 95 % interval (None below 4
        rounds). Pairing by round takes out what drifts slowly on the machine.
    aa: the same figure for A against A, measured in the same rounds: what pure chance makes of equal code.
    aa_spread_fraction: how far the A/A interval reaches from 1; differences below it cannot be seen.
    test: Mann-Whitney U over the rounds' medians, or why it was refused.
    """

    ratio: Ratio
    aa: Ratio | None
    aa_spread_fraction: float | None
    test: MannWhitney | Unavailable
    rounds: int


def compare_rounds(
    a: Sequence[Samples],
    b: Sequence[Samples],
    *,
    a_again: Sequence[Samples] | None = None,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> Comparison:
    """Ratio of medians of A to B from rounds that took turns (A, B, A, B, ...), with the A/A spread beside
    it.

    a_again: A measured a second time in every round (the same code, the same number of rounds).
    """
    ratio = _paired_ratio(a, b, rng, confidence)
    aa = None if a_again is None else _paired_ratio(a, a_again, rng, confidence)
    return Comparison(
        ratio=ratio,
        aa=aa,
        aa_spread_fraction=_spread(aa),
        test=mann_whitney(_round_medians(a), _round_medians(b)),
        rounds=len(a),
    )


def _paired_ratio(
    top: Sequence[Samples], bottom: Sequence[Samples], rng: np.random.Generator, confidence: float
) -> Ratio:
    if len(top) != len(bottom) or not top:
        raise StepscopeError(f"rounds do not pair up: {len(top)} against {len(bottom)}")
    above, below = _round_medians(top), _round_medians(bottom)
    if (above <= 0).any() or (below <= 0).any():
        raise StepscopeError("a ratio of medians needs positive samples")
    logs = np.log(above / below)
    ratio = math.exp(float(np.median(logs)))
    if logs.size < MIN_REPLICATES:
        return Ratio(ratio=ratio, low=None, high=None)
    interval = median_interval(logs, confidence=confidence, independent=True)
    if interval is None:
        index = rng.integers(0, logs.size, size=(RESAMPLES, logs.size))
        interval = percentile_interval(np.median(logs[index], axis=1), confidence=confidence)
    return Ratio(ratio=ratio, low=math.exp(interval.low), high=math.exp(interval.high))


def _round_medians(rounds: Sequence[Samples]) -> NDArray[np.float64]:
    return np.array([float(np.median(as_array(samples))) for samples in rounds])


def _spread(aa: Ratio | None) -> float | None:
    if aa is None or aa.low is None or aa.high is None:
        return None
    return max(abs(aa.low - 1.0), abs(aa.high - 1.0))


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
