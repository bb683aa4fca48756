"""Is one of several slower than the others, all the time and not by chance (METRICS: Stragglers)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.stats.bootstrap import bootstrap_median_interval
from stepscope.stats.by_sorting import median

LEAST_STEPS = 20
"""Of fewer steps nothing can be told."""

MIN_EXCESS = 0.05
"""Least median excess over the others' own time. Below 5% of a step a single rank costs less than what ordinary clocks and
schedulers take (2026-11)."""

_SEED = 20_261


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Medians over steps (ns): what a rank takes beyond the others' median, and that median. low_ns: lower end of the block
    bootstrap's 95% interval of the excess.
    """

    excess_ns: float
    low_ns: float
    others_ns: float


def chronic_excess(excess_ns: NDArray[np.float64], others_ns: NDArray[np.float64]) -> Excess | None:
    """The excess of a slow rank, from that of every step [steps] and the others' median own time [steps]; else None.

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
    interval = bootstrap_median_interval(values, rng=np.random.default_rng(_SEED))
    return None if interval is None else interval.low
