"""One change of level in a series of independent figures: where, and whether chance would do as much."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.stats.order import Samples, as_array

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
    figures whose best place is at least as good (exact up to 8 figures, else of 5,000 shuffles with a fixed seed).
    """

    at: int
    before: float
    after: float
    p_value: float

    @property
    def significant(self) -> bool:
        return self.p_value < SIGNIFICANT


def change_point(values: Samples) -> ChangePoint | Unavailable:
    """The split with the largest standardised rank sum (Pettitt, Applied Statistics 28, 1979, with a permutation test).

    values: in order of time, each of a run of its own. Unavailable below ``MIN_RUNS``, and where all are equal.
    """
    found = as_array(values)
    size = int(found.size)
    if size < MIN_RUNS:
        return Unavailable(f"{size} runs: below {MIN_RUNS} a change cannot be distinguished from chance")
    ranks = _mid_ranks(found)
    if ranks.min() == ranks.max():
        return Unavailable("all runs are equal")
    scores = _scores(ranks[None, :])[0]
    best = int(np.argmax(scores))
    at = best + MIN_SIDE
    least = float(scores[best]) - 1e-9
    if size <= _EXACT_UP_TO:
        every = np.array(list(permutations(range(size))), dtype=np.int8)
        p_value = float((_scores(ranks[every]).max(axis=1) >= least).mean())
    else:
        shuffled = np.random.default_rng(_SEED).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
        p_value = (1 + int((_scores(shuffled).max(axis=1) >= least).sum())) / (1 + _SHUFFLES)
    return ChangePoint(at=at, before=float(np.median(found[:at])), after=float(np.median(found[at:])), p_value=p_value)


def _mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(values)
    left = np.searchsorted(ordered, values, side="left")
    right = np.searchsorted(ordered, values, side="right")
    return np.asarray((left + right + 1) / 2, dtype=np.float64)


def _scores(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """|rank sum of the first k - its mean| / its standard deviation, for each split k; shape (orders, splits)."""
    size = ranks.shape[1]
    splits = np.arange(MIN_SIDE, size - MIN_SIDE + 1)
    sums = np.cumsum(ranks, axis=1)[:, splits - 1]
    spread = np.sqrt(splits * (size - splits) * (size + 1) / 12)
    return np.asarray(np.abs(sums - splits * (size + 1) / 2) / spread, dtype=np.float64)
