"""A series of numbers: median, spread, distribution-free intervals from order statistics, summary, one change of level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from statistics import NormalDist, variance

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.records.nouns import Ends, Estimate, Measured

Samples = Sequence[float] | Sequence[int] | NDArray[np.float64]

CONFIDENCE = 0.95
"""Confidence of every interval."""

MIN_INTERVAL_SAMPLES = 6
"""Fewest independent samples with a 95% interval of the median: 2 x 0.5**6 = 0.03 is the first below 0.05.
"""

_NORMAL_SIGMA_PER_MAD = 1.0 / NormalDist().inv_cdf(0.75)
_EXACT_UP_TO = 1000


def as_array(samples: Samples) -> NDArray[np.float64]:
    """``samples`` as float64 [n]. Empty or not finite: StepscopeError."""
    values = np.asarray(samples, dtype=np.float64).reshape(-1)
    if values.size == 0:
        raise StepscopeError("no samples")
    if not np.isfinite(values).all():
        raise StepscopeError("samples hold NaN or infinity")
    return values


def median(samples: Samples) -> float:
    """Return the middle sample, or the mean of the middle two, in the samples' unit; an empty list is refused."""
    return float(np.median(as_array(samples)))


def mad(samples: Samples) -> float:
    """Median absolute deviation from the median x 1.4826, which estimates the standard deviation of normal samples."""
    values = as_array(samples)
    return float(np.median(np.abs(values - np.median(values)))) * _NORMAL_SIGMA_PER_MAD


def median_interval(samples: Samples, *, independent: bool = False) -> Ends | None:
    """95% interval of the median, unit of the samples; None where they are too few or too dependent to give one.

    Order statistics k and n+1-k, with k from the binomial distribution of the number of samples below the
    median: whatever the distribution's shape, independent samples cover the true median 95 times of
    100 or more often. ``samples`` are in the order in which they were measured: unless ``independent``, the
    interval widens by the autocorrelation of "above or below the median", because the variance of a median of
    dependent samples is that of independent ones times :func:`sign_autocorrelation_time`. Few, strongly
    dependent samples (20 samples with a lag-1 correlation above 0.6) still cover less than they claim: no
    short series shows how dependent it is.
    """
    values = as_array(samples)
    n = int(values.size)
    k = _binomial_order(n)
    if k is None:
        return None
    if not independent:
        tau = sign_autocorrelation_time(values)
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        quantile = 0.5 - z / 2 * math.sqrt(tau / n)
        if tau > 1 and quantile <= 0:
            return None
        if tau > 1:
            k = min(k, max(1, math.floor(n * quantile)))
    ordered = np.sort(values)
    return float(ordered[k - 1]), float(ordered[n - k])


def measured_median(samples: Samples) -> Measured:
    """Return the median with :func:`median_interval` and the number of samples; an empty list is refused."""
    return Measured.between(median(samples), median_interval(samples), n=len(samples))


def doubled_mid_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the mid-rank of each value: integers even where ties share a rank."""
    ordered = np.sort(values)
    left = np.searchsorted(ordered, values, side="left")
    right = np.searchsorted(ordered, values, side="right")
    return np.asarray(left + right + 1, dtype=np.int64)


def pair_slopes(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """dy / dx of all pairs of points with another x, unsorted: their median is the slope of Theil and Sen."""
    order = np.argsort(x, kind="stable")
    a, b = np.triu_indices(x.size, k=1)
    run, rise = x[order[b]] - x[order[a]], y[order[b]] - y[order[a]]
    apart = run > 0
    return np.asarray(rise[apart] / run[apart])


def slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> Measured | None:
    """Median of ``pair_slopes`` with Sen's 95% interval (JASA 63, 1968), wider by the autocorrelation of what the line
    leaves; None where no two points differ in x. x in order."""
    slopes = np.sort(pair_slopes(x, y))
    if not slopes.size:
        return None
    middle, n = float(np.median(slopes)), int(x.size)
    tau = sign_autocorrelation_time(y - middle * x)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    half = z * math.sqrt(tau * n * (n - 1) * (2 * n + 5) / 18) / 2
    low, high = math.floor(slopes.size / 2 - half), math.ceil(slopes.size / 2 + half)
    ends = (float(slopes[low]), float(slopes[high])) if low >= 0 and high < slopes.size else None
    return Measured.between(middle, ends, n=n)


def sign_autocorrelation_time(samples: Samples) -> float:
    """How many consecutive samples count as one independent one for the median (>= 1).

    1 + 2 x the sum of the autocorrelations of sign(sample - median), cut at the first non-positive sum of two
    neighbouring lags (Geyer's initial positive sequence, Statistical Science 7, 1992) or at a third of the
    series.
    """
    values = as_array(samples)
    signs = np.sign(values - np.median(values))
    n = int(signs.size)
    signs -= signs.mean()
    variance = float(signs @ signs)
    if n < 4 or variance == 0.0:
        return 1.0
    total = 0.0
    last = max(1, n // 3)

    def correlation(lag: int) -> float:
        return float(signs[:-lag] @ signs[lag:]) / variance if lag <= last else 0.0

    if correlation(1) <= 0:
        return 1.0
    for lag in range(1, last + 1, 2):  # one by one: of a long series few are needed
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        total += pair
    return max(1.0, 1.0 + 2.0 * total)


@lru_cache(maxsize=1024)
def _binomial_order(n: int) -> int | None:
    """Largest k >= 1 with P(Binomial(n, 1/2) < k) <= (1 - CONFIDENCE) / 2, or None when even k = 1 fails."""
    tail = (1.0 - CONFIDENCE) / 2
    if n > _EXACT_UP_TO:
        z = NormalDist().inv_cdf(1.0 - tail)
        return max(1, math.floor((n - z * math.sqrt(n)) / 2))
    cumulative, weight = 0.0, 0.5**n
    k = 0
    while True:
        cumulative += weight
        if cumulative > tail:
            return k or None
        weight *= (n - k) / (k + 1)
        k += 1


_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, 97.5%, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2); beyond, 1.96 + 2.4 / df."""


def mean_interval(samples: Samples) -> Ends | None:
    """95% interval of the mean of independent repeats, by Student's t; None below 3."""
    values = as_array(samples)
    free = values.size - 1
    if free < 2:
        return None
    t = _T975[free - 1] if free <= len(_T975) else 1.96 + 2.4 / free
    half = t * float(values.std(ddof=1)) / math.sqrt(values.size)
    middle = float(values.mean())
    return middle - half, middle + half


def deviation_within(steps: Sequence[Sequence[float]]) -> tuple[float, int, str]:
    """Return the standard deviation between ranks within a step, the number of values behind it, and what they are of.

    Of one rank, it is that between its steps. It comes from the median of squares, so that one disturbed step does not
    decide (of chi-square with k degrees of freedom it is about k (1 - 2 / (9 k))^3).
    """
    several = [values for values in steps if len(values) > 1]
    if several:
        k = min(len(values) for values in several) - 1
        squares = [variance(values) for values in several]
        typical = median(squares) / (1 - 2 / (9 * k)) ** 3
        return math.sqrt(typical), sum(len(values) - 1 for values in several) + 1, "ranks"
    alone = [values[0] for values in steps]
    if len(alone) < 2:
        return 0.0, 1, "steps"
    middle = median(alone)
    return 1.4826 * median([abs(value - middle) for value in alone]), len(alone), "steps"


MIN_RUNS = 6
"""Fewest runs that are tested: of fewer, no order of the figures is rarer than 1 in 20."""

MIN_SIDE = 2
"""Figures on either side of a change: one alone is an outlier."""

SIGNIFICANT = 0.05

_EXACT_CHANGE_UP_TO = 8
_SHUFFLES = 5_000
_SEED = 20_261_122


@record
class ChangePoint:
    """The best place for one change. at: figures before it. before, after: medians. p_value: share of all orders of the
    figures whose largest rank sum is at least as large (exact up to 8 figures, else of 5,000 shuffles with a fixed seed).
    """

    at: int
    before: float
    after: float
    p_value: float

    @property
    def significant(self) -> bool:
        return self.p_value < SIGNIFICANT


def change_point(values: Samples) -> ChangePoint | Unavailable:
    """Find the best place for one change, and test it by the largest standardised rank sum of all splits (Pettitt, Applied
    Statistics 28, 1979, with a permutation test). The place is the split with the least squares about two levels, which
    ranks do not place as well.

    values: in order of time, each of a run of its own. Unavailable below ``MIN_RUNS``, and where all are equal.
    """
    series = as_array(values)
    size = int(series.size)
    if size < MIN_RUNS:
        return Unavailable(f"{size} runs: below {MIN_RUNS} a change cannot be distinguished from chance")
    ranks = doubled_mid_ranks(series) / 2
    if ranks.min() == ranks.max():
        return Unavailable("all runs are equal")
    at = _split_place(series, MIN_SIDE)
    least = float(_split_scores(ranks[None, :])[0].max()) - 1e-9
    if size <= _EXACT_CHANGE_UP_TO:
        every = np.array(list(permutations(range(size))), dtype=np.int8)
        p_value = float((_split_scores(ranks[every]).max(axis=1) >= least).mean())
    else:
        shuffled = np.random.default_rng(_SEED).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
        p_value = (1 + int((_split_scores(shuffled).max(axis=1) >= least).sum())) / (1 + _SHUFFLES)
    return ChangePoint(
        at=at, before=float(np.median(series[:at])), after=float(np.median(series[at:])), p_value=p_value
    )


LEAST_POINTS = 30
LEAST_SIDE = 10
LEAST_CHANGE = 0.05
"""A change of less is no matter: medians of runs on quiet machines differ by 2%."""

MOST_TREND = 0.5
"""Share of the change by which either side may move by itself: more is a drift, of which no step is the beginning."""


@record
class LevelChange:
    """One step from a level to another. at: figures before it. before, after: medians; ratio: of them, with its interval
    where there are enough figures for one."""

    at: int
    before: float
    after: float
    ratio: Estimate


def level_change(values: Samples) -> LevelChange | None:
    """Find the one place where a long series of neighbours, which need not be independent, steps to another level.

    The split with the least squares, ``LEAST_SIDE`` figures or more on each side; None where the medians differ by less than
    ``LEAST_CHANGE``, the middle halves of the two sides overlap, or a side drifts by itself (its first against its last
    third) by more than ``MOST_TREND`` of the change.
    """
    series = as_array(values)
    size = int(series.size)
    if size < LEAST_POINTS or series.min() <= 0:
        return None
    at = _split_place(series, LEAST_SIDE)
    sides = series[:at], series[at:]
    before, after = (float(np.median(side)) for side in sides)
    change = abs(after - before)
    low, high = sorted(sides, key=lambda side: float(np.median(side)))
    if change < LEAST_CHANGE * before or np.quantile(low, 0.75) >= np.quantile(high, 0.25):
        return None
    if any(_side_trend(side) > MOST_TREND * change for side in sides):
        return None
    return LevelChange(at=at, before=before, after=after, ratio=Estimate(value=after / before))


def _split_place(values: NDArray[np.float64], least_side: int) -> int:
    """Return how many figures lie before the split with the least squares about the means of its sides; single outliers
    count as the 2% next."""
    kept = np.clip(values, *np.quantile(values, (0.02, 0.98)))
    kept = kept - kept.mean()
    splits = np.arange(least_side, kept.size - least_side + 1)
    sums = np.cumsum(kept)[splits - 1]
    return int(splits[np.argmax(sums**2 / splits + sums**2 / (kept.size - splits))])


def _side_trend(side: NDArray[np.float64]) -> float:
    third = max(1, side.size // 3)
    return abs(float(np.median(side[-third:]) - np.median(side[:third])))


def _split_scores(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """|rank sum of the first k - its mean| / its standard deviation, for each split k; shape (orders, splits)."""
    size = ranks.shape[1]
    splits = np.arange(MIN_SIDE, size - MIN_SIDE + 1)
    sums = np.cumsum(ranks, axis=1)[:, splits - 1]
    spread = np.sqrt(splits * (size - splits) * (size + 1) / 12)
    return np.asarray(np.abs(sums - splits * (size + 1) / 2) / spread, dtype=np.float64)
