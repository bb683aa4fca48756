"""Student's t: how far the mean of few samples may lie from the mean of what they were drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from stepscope.stats.order import Interval

MIN_SAMPLES = 3
"""Fewest samples of which an interval of the mean is given: of two, it is 13 times as wide as they lie apart."""

_HALVINGS = 60


def mean_interval(samples: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Interval of the mean, in the unit of the samples, which are taken to be normal and independent; None below 3."""
    if len(samples) < MIN_SAMPLES:
        return None
    reach = t_quantile(len(samples) - 1, confidence=confidence) * stdev(samples) / math.sqrt(len(samples))
    return Interval(fmean(samples) - reach, fmean(samples) + reach)


def t_quantile(freedom: int, *, confidence: float = 0.95) -> float:
    """t within which, on both sides of 0, Student's variable of ``freedom`` degrees lies with this probability.

    The distribution's finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4), inverted by
    halving an interval: exact to 1e-12, without scipy.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Probability of less than ``tan(angle) * sqrt(freedom)`` on either side of 0."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share
