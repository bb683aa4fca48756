"""Block bootstrap: intervals of medians and of ratios of means for samples that depend on their
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import StepscopeError
from stepscope.stats.order import (
    CONFIDENCE,
    MIN_INTERVAL_SAMPLES,
    Interval,
    Samples,
    as_array,
    median_interval,
    sign_autocorrelation_time,
)

RESAMPLES = 2000

LONG = 20_000
"""Samples from which on the interval of a median is that of order statistics: 2,000 resamples take minutes and agree."""

_LOOKED_AT = 10_000  # leading steps that show how steps depend on each other
_CHUNK_ELEMENTS = 4_000_000  # of one matrix of resampled values: 32 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two means and its interval; ``low`` and ``high`` are None where there is no interval."""

    ratio: float
    low: float | None
    high: float | None


def block_length(samples: Samples) -> int:
    """Consecutive samples to keep together: the larger of n**(1/3) and the series' own dependence time."""
    values = as_array(samples)
    wanted = max(values.size ** (1 / 3), 2.0 * sign_autocorrelation_time(values) - 1.0)
    return max(1, min(math.ceil(float(wanted)), len(values) // 2))


def bootstrap_medians(samples: Samples, *, rng: np.random.Generator, block: int | None = None) -> NDArray[np.float64]:
    """Medians of ``RESAMPLES`` circular block resamples [resamples]; ``block`` None: :func:`block_length`."""
    return _bootstrap(np.median, samples, rng=rng, block=block)


def _bootstrap(
    statistic: Callable[..., Any],
    samples: Samples,
    *,
    rng: np.random.Generator,
    block: int | None = None,
) -> NDArray[np.float64]:
    """``statistic`` of every row of ``RESAMPLES`` circular block resamples."""
    values = as_array(samples)
    n = int(values.size)
    length = block_length(values) if block is None else max(1, min(block, n))
    blocks = -(-n // length)
    result = np.empty(RESAMPLES)
    chunk = max(1, _CHUNK_ELEMENTS // (blocks * length))
    for start in range(0, RESAMPLES, chunk):
        count = min(chunk, RESAMPLES - start)
        starts = rng.integers(0, n, size=(count, blocks, 1))
        index = (starts + np.arange(length)).reshape(count, -1)[:, :n] % n
        result[start : start + count] = statistic(values[index], axis=1)
    return result


def bootstrap_median_interval(
    samples: Samples, *, rng: np.random.Generator, block: int | None = None
) -> Interval | None:
    """95% percentile interval of the median under a block bootstrap; None below 6 samples. Of a long series that of order
    statistics, as wide as its dependence makes it.
    """
    if len(samples) < MIN_INTERVAL_SAMPLES:
        return None
    if len(samples) >= LONG and block is None:
        return median_interval(samples)
    return percentile_interval(bootstrap_medians(samples, rng=rng, block=block))


def ratio_of_means(numerator: Samples, denominator: Samples, *, rng: np.random.Generator) -> Ratio:
    """mean(numerator) / mean(denominator), the two measured independently; 95% interval from 6 samples a side.

    Block bootstrap of each side, percentile interval of the ratio. Samples must be positive.
    """
    top, bottom = as_array(numerator), as_array(denominator)
    if (top <= 0).any() or (bottom <= 0).any():
        raise StepscopeError("a ratio of means needs positive samples")
    ratio = float(top.mean() / bottom.mean())
    if min(top.size, bottom.size) < MIN_INTERVAL_SAMPLES:
        return Ratio(ratio=ratio, low=None, high=None)
    above, below = (_bootstrap(np.mean, side, rng=rng) for side in (top, bottom))
    interval = percentile_interval(above / below)
    return Ratio(ratio=ratio, low=interval.low, high=interval.high)


def share_interval(
    part: Samples, whole: Samples, *, rng: np.random.Generator, block: int | None = None
) -> tuple[float, float] | None:
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
        ratios = np.array([sums[0][each].sum() / sums[1][each].sum() for each in drawn])
    else:
        ratios = sums[0][starts].sum(axis=1) / sums[1][starts].sum(axis=1)
    interval = percentile_interval(ratios)
    return interval.low, interval.high


def rounds_median_interval(rounds: Sequence[Samples], *, rng: np.random.Generator) -> Interval | None:
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
        medians[index] = np.median(np.concatenate([_resample(values[r], lengths[r], rng) for r in drawn]))
    return percentile_interval(medians)


def percentile_interval(estimates: NDArray[np.float64], *, confidence: float = CONFIDENCE) -> Interval:
    """The central 95% of bootstrap estimates, or another share of them, in their unit."""
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(estimates, [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def _resample(values: NDArray[np.float64], length: int, rng: np.random.Generator) -> NDArray[np.float64]:
    n = int(values.size)
    starts = rng.integers(0, n, size=(-(-n // length), 1))
    index = (starts + np.arange(length)).reshape(-1)[:n] % n
    return np.asarray(values[index])
