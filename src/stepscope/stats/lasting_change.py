"""The one place from which on a long series of dependent figures runs at another level, and stays there.

Least squares about two levels, of the logarithms' block means, without outliers: the split k of n with the largest

    F(k) = k (n - k) / n (mean after k - mean up to k)^2 / omega^2

(Bai, Estimation of a change point in multiple regression models, Review of Economics and Statistics 79, 1997; the squared
CUSUM of Csorgo and Horvath, Limit Theorems in Change-Point Analysis, 1997). omega^2 is the long-run variance of what is left
of the series about its two levels, Bartlett's kernel with the lag of an AR(1) (Andrews, Econometrica 59, 1991).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stepscope.records.nouns import Estimate
from stepscope.stats.order import MOST_TREND, LevelChange, Samples, as_array, mad

Numbers = NDArray[np.float64]

LIMIT = 20.0
"""Least F of a change: at one split 7 is 1 in 100; the largest of all splits of a clean series exceeds 15 in 1 of 100
(Andrews, Econometrica 61, 1993), and a job that is watched is asked many times."""

LEAST_STEPS, LEAST_SIDE = 200, 100
"""Least number of figures, and of those on either side: what lasts less is a pause, and the long-run variance of fewer is
not known."""

BLOCK = 5
"""Neighbours that count as one figure, their mean."""

AROUND, MOST_MADS = 25, 3.0
"""Neighbours from whose median a step counts as no further away than so many MAD: a pause moves nothing."""

LEAST = 0.02
"""Relative change that matters: runs of one job on a quiet machine differ by as much, and warm-up ends within it."""

TOLERATED = 0.1
"""Share of the figures on either side that may lie in spells at the other's level."""

_LOCAL = 4
"""The part of the shorter side next to the split whose means have to differ as the sides do: of a drift they do not."""

_Z = 1.96


def lasting_change(values: Samples) -> LevelChange | None:
    """The split of positive ``values`` with the largest F of those from which on nearly all runs at another level.

    None where they are fewer than ``LEAST_STEPS``, no split's F exceeds ``LIMIT``, the sides differ by less than ``LEAST``,
    or come back to each other's level (a spell, two kinds of steps in turn), and where next to the split the level moves by
    less than half of the change (a drift, a long warm-up). O(n) of each stretch that is split again.
    """
    series = as_array(values)
    if series.size < LEAST_STEPS or series.min() <= 0:
        return None
    logs = np.log(series)
    usual = np.median(logs[: logs.size // AROUND * AROUND].reshape(-1, AROUND), axis=1)
    usual = np.repeat(usual, AROUND, axis=0)
    usual = np.pad(usual, (0, logs.size - usual.size), mode="edge")
    most = MOST_MADS * mad(logs - usual)
    kept = np.clip(logs, usual - most, usual + most)
    blocks = kept[: logs.size // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    borders = _level_borders(blocks, 0)
    levels = [float(np.median(part)) for part in np.split(blocks, borders)]
    lengths = np.diff([0, *borders, blocks.size])
    best, most = None, 0.0
    for number, at in enumerate(borders, start=1):
        before, after = (float(np.median(side)) for side in (blocks[:at], blocks[at:]))
        middle, grew = (before + after) / 2, after > before
        beyond = (np.array(levels) > middle) == grew
        astray = (lengths[:number] @ beyond[:number]) / at, (lengths[number:] @ ~beyond[number:]) / (blocks.size - at)
        if abs(after - before) < math.log1p(LEAST) or max(astray) > TOLERATED:
            continue
        near = max(2, min(at, blocks.size - at) // _LOCAL)
        jump = float(blocks[at : at + near].mean() - blocks[at - near : at].mean())
        if jump * (1 if grew else -1) < MOST_TREND * abs(after - before):
            continue
        f, variance = _f_and_variance(blocks, at)
        if f > most:
            size = after - before
            half = _Z * math.sqrt(variance * (1 / at + 1 / (blocks.size - at)))
            most = f
            best = LevelChange(
                at=at * BLOCK,
                before=math.exp(before),
                after=math.exp(after),
                ratio=Estimate(value=math.exp(size), low=math.exp(size - half), high=math.exp(size + half)),
            )
    return best


def _level_borders(blocks: Numbers, begin: int) -> list[int]:
    """Places, counted from ``begin``, at which a series changes its level; each side is searched again."""
    least = LEAST_SIDE // BLOCK
    if blocks.size < 2 * least:
        return []
    splits = np.arange(least, blocks.size - least + 1)
    beyond = np.cumsum(blocks - blocks.mean())[splits - 1]
    at = int(splits[np.argmax(beyond**2 / (splits * (blocks.size - splits)))])
    if _f_and_variance(blocks, at)[0] <= LIMIT:
        return []
    return [*_level_borders(blocks[:at], begin), begin + at, *_level_borders(blocks[at:], begin + at)]


def _f_and_variance(blocks: Numbers, at: int) -> tuple[float, float]:
    """Return F of the split, and the long-run variance of the rest."""
    sides = blocks[:at], blocks[at:]
    means = [float(side.mean()) for side in sides]
    variance = _long_run_variance(np.concatenate([side - mean for side, mean in zip(sides, means, strict=True)]))
    between = at * (blocks.size - at) / blocks.size * (means[1] - means[0]) ** 2
    return between / variance, variance


def _long_run_variance(rest: Numbers) -> float:
    """Return n times the variance of the mean, no less than that of independent figures: two kinds of steps in turn cancel
    each other in a mean, until they do not take turns."""
    n = rest.size
    plain = max(float(rest @ rest) / n, 1e-12)
    first = min(max(float(rest[1:] @ rest[:-1]) / n / plain, 0.0), 0.97)
    alpha = 4 * first**2 / (1 - first**2) ** 2
    lags = min(int(1.1447 * (alpha * n) ** (1 / 3)), n // 3)
    total = plain
    for lag in range(1, lags + 1):
        total += 2 * (1 - lag / (lags + 1)) * float(rest[lag:] @ rest[:-lag]) / n
    return max(total, plain)
