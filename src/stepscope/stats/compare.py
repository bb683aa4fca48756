"""Samples against samples: block bootstrap, ratio of medians, Mann-Whitney U, many quantities at once, and the excess of
one over the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.records.nouns import Ends, Estimate
from stepscope.stats.order import (
    CONFIDENCE,
    MIN_INTERVAL_SAMPLES,
    Samples,
    as_array,
    doubled_mid_ranks,
    median,
    median_interval,
    sign_autocorrelation_time,
)

RESAMPLES = 2000

LONG = 20_000
"""Samples from which on the interval of a median is that of order statistics: 2,000 resamples take minutes and agree."""

_LOOKED_AT = 10_000  # leading steps that show how steps depend on each other
_CHUNK_ELEMENTS = 4_000_000  # of one matrix of resampled values: 32 MB


def block_length(samples: Samples) -> int:
    """Consecutive samples to keep together: the larger of n**(1/3) and the series' own dependence time."""
    values = as_array(samples)
    wanted = max(values.size ** (1 / 3), 2.0 * sign_autocorrelation_time(values) - 1.0)
    return max(1, min(math.ceil(float(wanted)), len(values) // 2))


def bootstrap(
    statistic: Callable[..., Any], samples: Samples, *, rng: np.random.Generator, block: int | None = None
) -> NDArray[np.float64]:
    """Apply ``statistic`` to every row of ``RESAMPLES`` circular block resamples; without ``block`` it is
    :func:`block_length`."""
    values = as_array(samples)
    length = block_length(values) if block is None else block
    result = np.empty(RESAMPLES)
    chunk = max(1, _CHUNK_ELEMENTS // (-(-values.size // length) * length))
    for start in range(0, RESAMPLES, chunk):
        count = min(chunk, RESAMPLES - start)
        result[start : start + count] = statistic(_block_resamples(values, length, count, rng), axis=1)
    return result


def _block_resamples(
    values: NDArray[np.float64], length: int, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return so many circular block resamples [resamples, samples]."""
    n = int(values.size)
    starts = rng.integers(0, n, size=(count, -(-n // length), 1))
    return np.asarray(values[(starts + np.arange(length)).reshape(count, -1)[:, :n] % n])


def bootstrap_median_interval(samples: Samples, *, rng: np.random.Generator) -> Ends | None:
    """95% percentile interval of the median under a block bootstrap; None below 6 samples. Of a long series that of order
    statistics, as wide as its dependence makes it.
    """
    if len(samples) < MIN_INTERVAL_SAMPLES:
        return None
    if len(samples) >= LONG:
        return median_interval(samples)
    return percentile_interval(bootstrap(np.median, samples, rng=rng))


def ratio_of_means(numerator: Samples, denominator: Samples, *, rng: np.random.Generator) -> Estimate:
    """mean(numerator) / mean(denominator), the two measured independently; 95% interval from 6 samples a side.

    Block bootstrap of each side, percentile interval of the ratio. Samples must be positive.
    """
    top, bottom = as_array(numerator), as_array(denominator)
    if (top <= 0).any() or (bottom <= 0).any():
        raise StepscopeError("a ratio of means needs positive samples")
    ratio = float(top.mean() / bottom.mean())
    if min(top.size, bottom.size) < MIN_INTERVAL_SAMPLES:
        return Estimate(value=ratio)
    above, below = (bootstrap(np.mean, side, rng=rng) for side in (top, bottom))
    low, high = percentile_interval(above / below)
    return Estimate(value=ratio, low=low, high=high)


def share_interval(part: Samples, whole: Samples, *, rng: np.random.Generator, block: int | None = None) -> Ends | None:
    """95% interval of sum(part) / sum(whole), the two of the same steps [n]; None below 6 steps.

    Block bootstrap: blocks of steps are drawn with both their figures, so that what they have in common cancels.
    """
    top, bottom = as_array(part), as_array(whole)
    n = int(top.size)
    if n < MIN_INTERVAL_SAMPLES:
        return None
    beyond = top - top.sum() / bottom.sum() * bottom  # what decides the ratio's error
    length = max(block_length(beyond[:_LOOKED_AT]), math.ceil(n**0.5)) if block is None else max(1, min(block, n))
    blocks = -(-n // length)
    sums = []
    for values in (top, bottom):  # a block's sum, circular, for every start
        turned = np.concatenate([values, values[: length - 1]])
        cumulated = np.concatenate([[0.0], np.cumsum(turned)])
        sums.append(cumulated[length:] - cumulated[:-length])
    starts = rng.integers(0, n, size=(RESAMPLES, blocks)) if n * blocks < _CHUNK_ELEMENTS else None
    if starts is None:  # a long series: as many blocks, drawn a resample at a time
        drawn = [rng.integers(0, n, size=blocks) for _ in range(RESAMPLES)]
        ratios = np.array([sums[0][resample].sum() / sums[1][resample].sum() for resample in drawn])
    else:
        ratios = sums[0][starts].sum(axis=1) / sums[1][starts].sum(axis=1)
    return percentile_interval(ratios)


def rounds_median_interval(rounds: Sequence[Samples], *, rng: np.random.Generator) -> Ends | None:
    """Interval of the median over all samples of several rounds (>= 2), each round a block of its own.

    Two-stage bootstrap: rounds are drawn with replacement, then blocks of samples inside each. What differs
    between rounds so widens the interval; with fewer than six rounds it still is somewhat too narrow. None
    below 6 samples.
    """
    values = [as_array(samples) for samples in rounds]
    if len(values) < 2:
        raise StepscopeError("an interval over rounds needs at least two rounds")
    if sum(v.size for v in values) < MIN_INTERVAL_SAMPLES:
        return None
    lengths = [block_length(v) for v in values]
    medians = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = rng.integers(0, len(values), size=len(values))
        medians[index] = np.median(np.concatenate([_block_resamples(values[r], lengths[r], 1, rng)[0] for r in drawn]))
    return percentile_interval(medians)


def percentile_interval(estimates: NDArray[np.float64], *, confidence: float = CONFIDENCE) -> Ends:
    """Return the ends of the central 95% of bootstrap estimates, or of another share of them, in their unit."""
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(estimates, [tail, 1.0 - tail])
    return float(low), float(high)


MIN_REPLICATES = 4
"""A side: with 3 + 3 replicates the smallest two-sided p is 2 / C(6,3) = 0.10, so no result could be
significant.
"""

SUPERLINEAR = 1.05
"""Above this efficiency n ranks do more than n times the work of one. Caches and sharded memory make that possible; a slow
baseline makes it far more often."""

SIGNIFICANT = 0.05
MOST_BLOCKS = 20
"""Blocks that a series of steps is cut into at most: more say nothing new, and each gets shorter than its dependence."""

_SEED = 20_261_121
_RESAMPLES = 4000
_MOST_DEALS = 4000
_EXACT_UP_TO = 40  # replicates on both sides together


@record
class MannWhitney:
    """Outcome of the test. u: pairs in which the first sample is larger (ties count half); p_value: two-sided."""

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
            f"{a.size} + {b.size} replicates: below {MIN_REPLICATES} + {MIN_REPLICATES} no difference is distinguishable"
            " from chance"
        )
    doubled = doubled_mid_ranks(np.concatenate([a, b]))
    n, m = int(a.size), int(b.size)
    rank_sum = int(doubled[:n].sum())
    u = (rank_sum - n * (n + 1)) / 2
    exact = n + m <= _EXACT_UP_TO
    p_value = _exact_p(doubled, n, rank_sum) if exact else _normal_p(doubled, n, m, u)
    return MannWhitney(u=u, p_value=p_value, exact=exact)


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


Outcome = Literal["more", "less", "not clear", "no significant difference", "not tested"]
"""``not clear``: of the test and the interval one says that there is a difference, the other does not."""


@record
class Change:
    """A second sample of replicates against a first one.

    ratio: median of the second / median of the first. p_value: Mann-Whitney, two-sided. All but the ratio's value are None
    where ``untested`` says why. wide: the interval holds what the test cannot know (what two runs differ by), and decides
    alone that there is nothing.
    """

    ratio: Estimate
    p_value: float | None = None
    untested: str | None = None
    wide: bool = False

    @property
    def apart(self) -> bool:
        """Whether the interval leaves out no change."""
        return self.ratio.leaves_out(1.0)

    @property
    def outcome(self) -> Outcome:
        """Different only where the test and the interval agree; without a test, where the interval leaves out no change."""
        if self.ratio.low is None:
            return "not tested"
        significant = self.apart if self.p_value is None else self.p_value < SIGNIFICANT
        if self.apart != significant and not (self.wide and not self.apart):
            return "not clear"
        if not self.apart:
            return "no significant difference"
        return "more" if self.ratio.value > 1.0 else "less"


def change(
    first: Samples, second: Samples, *, paired: bool = False, between: float | None = None, tests: int = 1
) -> Change | None:
    """Compare two samples of positive replicates; None where a median is not positive.

    paired: replicate i of both was measured side by side, and they are drawn together for the interval (percentile bootstrap
    of the ratio of medians). between: the replicates of a side are blocks of one run, in their order, and two runs of one
    command differ by this standard deviation of log(ratio), which no block shows: the interval holds it, and what
    neighbouring blocks have in common. tests: made at once (Bonferroni); p is that of all of them.
    """
    a, b = as_array(first), as_array(second)
    if min(np.median(a), np.median(b)) <= 0:
        return None
    ratio = float(np.median(b) / np.median(a))
    test = mann_whitney(a, b)
    if isinstance(test, Unavailable):
        return Change(ratio=Estimate(value=ratio), untested=test.reason)
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(0, a.size, size=(_RESAMPLES, a.size))
    other = drawn if paired and a.size == b.size else rng.integers(0, b.size, size=(_RESAMPLES, b.size))
    bottom, top = np.median(a[drawn], axis=1), np.median(b[other], axis=1)
    if bottom.min() <= 0:
        return Change(ratio=Estimate(value=ratio), p_value=test.p_value)
    low, high = percentile_interval(top / bottom, confidence=1 - SIGNIFICANT / tests)
    if between is not None:
        within, of_runs = _carried_over(a, b), NormalDist().inv_cdf(1 - SIGNIFICANT / tests / 2) * between
        below, above = (math.hypot(within * math.log(end / ratio), of_runs) for end in (low, high))
        low, high = ratio * math.exp(-below), ratio * math.exp(above)
    p_value = min(1.0, test.p_value * tests)
    return Change(ratio=Estimate(value=ratio, low=low, high=high), p_value=p_value, wide=between is not None)


def _carried_over(*sides: NDArray[np.float64]) -> float:
    """How much wider an interval is for what a block has in common with the next: sqrt((1 + r) / (1 - r)).

    r: correlation of neighbours, mean of the sides, with the bias of a short series taken off; 0 to 0.8.
    """
    correlations = []
    for values in sides:
        off = values - values.mean()
        whole = float((off**2).sum())
        correlations.append(float((off[1:] * off[:-1]).sum()) / whole + 1 / values.size if whole > 0 else 0.0)
    r = min(0.8, max(0.0, sum(correlations) / len(correlations)))
    return math.sqrt((1 + r) / (1 - r))


def step_blocks(series: Samples, *, least: int = 1) -> int:
    """Consecutive steps that count as one replicate: longer than steps depend on each other, ``MOST_BLOCKS`` at most.

    Up to ``least`` steps each step is a replicate of its own: so few cannot tell how long they depend on each other.
    """
    values = as_array(series)
    if values.size <= least:
        return 1
    return max(block_length(values), -(-int(values.size) // MOST_BLOCKS))


def block_medians(series: Samples, length: int) -> NDArray[np.float64]:
    """Medians over blocks of ``length`` consecutive samples, along the first axis; what is left at the end is dropped."""
    values = np.asarray(series, dtype=np.float64)
    if length == 1:
        return values
    kept = values[: len(values) // length * length]
    return np.asarray(np.median(kept.reshape(-1, length, *values.shape[1:]), axis=1))


def row_p_values(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64] | Unavailable:
    """p of every column [rows] of two samples [replicates, rows], corrected for all of them; refused below 4 + 4.

    Permutation test of the difference of means, step-down with the largest statistic (Westfall and Young,
    Resampling-Based Multiple Testing, 1993, algorithm 4.1): replicates of all rows are dealt to the two sides
    together, so that p can be as small as one test's whatever the number of rows. Exact up to 4,000 ways of dealing.
    """
    n, m = len(first), len(second)
    if min(n, m) < MIN_REPLICATES:
        return Unavailable(f"{n} + {m} replicates: below {MIN_REPLICATES} + {MIN_REPLICATES}")
    pooled = np.concatenate([first, second])
    centred = pooled - pooled.mean(axis=0)
    scale = np.sqrt((centred**2).sum(axis=0))
    shares = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    deals = _side_deals(n, m)
    statistics = np.abs(deals @ shares)  # the sum of the first side: means follow, since all columns are centred
    order = np.argsort(-statistics[0], kind="stable")
    highest = np.maximum.accumulate(statistics[:, order][:, ::-1], axis=1)[:, ::-1]
    reached = (highest >= statistics[0, order] - 1e-9).mean(axis=0)
    p_values = np.empty(len(order))
    p_values[order] = np.maximum.accumulate(reached)
    return p_values


def _side_deals(n: int, m: int) -> NDArray[np.float64]:
    """Return which of n + m replicates go to the first side, one way of dealing a row; the first row is how they came."""
    if math.comb(n + m, n) <= _MOST_DEALS:
        deals = np.zeros((math.comb(n + m, n), n + m))
        for row, chosen in enumerate(combinations(range(n + m), n)):
            deals[row, chosen] = 1.0
        return deals
    rng = np.random.default_rng(_SEED)
    rows = np.tile(np.arange(n + m) < n, (_MOST_DEALS, 1)).astype(np.float64)
    rows[1:] = rng.permuted(rows[1:], axis=1)
    return rows


LEAST_STEPS = 20
"""Fewest steps from which an excess can be told."""

MIN_EXCESS = 0.05
"""Least median excess over the others' own time. Below 5% of a step a single rank costs less than what ordinary clocks and
schedulers take (2026-11)."""

CLEAR_EXCESS, CLEAR_NOISE, LONE_EXCESS = 0.10, 3.0, 0.30
"""Of fewer than 20 steps a rank of a grid is slow whose own time exceeds its peers' in every step, by 10% and 3 times what
both vary; of one step, 30% (made grids of 8 to 64 ranks, 2026-11)."""

_EXCESS_SEED = 20_261


@record
class Excess:
    """Medians over steps (ns): what a rank takes beyond the others' median, and that median. low_ns: lower end of the block
    bootstrap's 95% interval of the excess.
    """

    excess_ns: float
    low_ns: float
    others_ns: float


def chronic_excess(excess_ns: NDArray[np.float64], others_ns: NDArray[np.float64]) -> Excess | None:
    """Return the excess of a rank if it is slow, else None: from its excess in every step [steps] and the others' median own
    time [steps].

    Slow is one with at least 20 steps whose median excess is more than 5% of the others' own time, and whose lower bound
    lies above 0.
    """
    if excess_ns.size < LEAST_STEPS:
        return None
    middle, typical = median(excess_ns), median(others_ns)
    if middle <= MIN_EXCESS * typical:
        return None
    low = lower_bound(excess_ns)
    return None if low is None or low <= 0 else Excess(excess_ns=middle, low_ns=low, others_ns=typical)


def lower_bound(values: NDArray[np.float64]) -> float | None:
    """Lower end of the block bootstrap's 95% interval of the median; None below 6 samples."""
    interval = bootstrap_median_interval(values, rng=np.random.default_rng(_EXCESS_SEED))
    return None if interval is None else interval[0]
