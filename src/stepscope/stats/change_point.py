"""One change of level in a series of figures: where, and whether it is one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.stats.order import Samples, as_array, doubled_mid_ranks

MIN_RUNS = 6
"""Below, no order of the figures is rarer than 1 in 20."""

MIN_SIDE = 2
"""Figures on either side of a change: one alone is an outlier."""

SIGNIFICANT = 0.05

_EXACT_UP_TO = 8
_SHUFFLES = 5_000
_SEED = 20_261_122


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Whether there is one: the largest standardised rank sum of all splits (Pettitt, Applied Statistics 28, 1979, with a
    permutation test). Where: the split with the least squares about two levels, which ranks do not place as well.

    values: in order of time, each of a run of its own. Unavailable below ``MIN_RUNS``, and where all are equal.
    """
    found = as_array(values)
    size = int(found.size)
    if size < MIN_RUNS:
        return Unavailable(f"{size} runs: below {MIN_RUNS} a change cannot be distinguished from chance")
    ranks = doubled_mid_ranks(found) / 2
    if ranks.min() == ranks.max():
        return Unavailable("all runs are equal")
    at = _place(found, MIN_SIDE)
    least = float(_scores(ranks[None, :])[0].max()) - 1e-9
    if size <= _EXACT_UP_TO:
        every = np.array(list(permutations(range(size))), dtype=np.int8)
        p_value = float((_scores(ranks[every]).max(axis=1) >= least).mean())
    else:
        shuffled = np.random.default_rng(_SEED).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
        p_value = (1 + int((_scores(shuffled).max(axis=1) >= least).sum())) / (1 + _SHUFFLES)
    return ChangePoint(at=at, before=float(np.median(found[:at])), after=float(np.median(found[at:])), p_value=p_value)


LEAST_POINTS = 30
LEAST_SIDE = 10
LEAST_CHANGE = 0.05
"""A change of less is no matter: medians of runs on quiet machines differ by 2%."""

MOST_TREND = 0.5
"""Of the change, how much either side may move by itself: more is a drift, of which no step is the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """One step from a level to another. at: figures before it. before, after: medians."""

    at: int
    before: float
    after: float


def level_change(values: Samples) -> LevelChange | None:
    """The one place where a long series of neighbours, which need not be independent, steps to another level.

    The split with the least squares, ``LEAST_SIDE`` figures or more on each side; None where the medians differ by less
    than ``LEAST_CHANGE``, the middle halves of the two sides overlap, or a side drifts by itself (its first against its last
    third) by more than ``MOST_TREND`` of the change.
    """
    found = as_array(values)
    size = int(found.size)
    if size < LEAST_POINTS or found.min() <= 0:
        return None
    at = _place(found, LEAST_SIDE)
    sides = found[:at], found[at:]
    before, after = (float(np.median(side)) for side in sides)
    change = abs(after - before)
    low, high = sorted(sides, key=lambda side: float(np.median(side)))
    if change < LEAST_CHANGE * before or np.quantile(low, 0.75) >= np.quantile(high, 0.25):
        return None
    if any(_trend(side) > MOST_TREND * change for side in sides):
        return None
    return LevelChange(at=at, before=before, after=after)


def _place(values: NDArray[np.float64], least_side: int) -> int:
    """Figures before the split with the least squares about the means of its sides; single outliers count as the 2% next."""
    kept = np.clip(values, *np.quantile(values, (0.02, 0.98)))
    kept = kept - kept.mean()
    splits = np.arange(least_side, kept.size - least_side + 1)
    sums = np.cumsum(kept)[splits - 1]
    return int(splits[np.argmax(sums**2 / splits + sums**2 / (kept.size - splits))])


def _trend(side: NDArray[np.float64]) -> float:
    third = max(1, side.size // 3)
    return abs(float(np.median(side[-third:]) - np.median(side[:third])))


def _scores(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """|rank sum of the first k - its mean| / its standard deviation, for each split k; shape (orders, splits)."""
    size = ranks.shape[1]
    splits = np.arange(MIN_SIDE, size - MIN_SIDE + 1)
    sums = np.cumsum(ranks, axis=1)[:, splits - 1]
    spread = np.sqrt(splits * (size - splits) * (size + 1) / 12)
    return np.asarray(np.abs(sums - splits * (size + 1) / 2) / spread, dtype=np.float64)
