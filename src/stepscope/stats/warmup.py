"""When measuring begins and ends: where warm-up stops, from the step times themselves, and when steps are enough.

The rank half asks these at the same step counts on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.stats.order import Samples, as_array, mad, measured_median

MIN_WARMUP_STEPS = 3
"""The first step allocates, DDP rebuilds its buckets after it, and the next is the first on the new buckets.
"""

MIN_TOTAL_STEPS = 10
"""Fewer steps cannot tell a level from the end of a slope."""

GIVE_UP_STEPS = 120
GIVE_UP_NS = 4_000_000_000
"""Steps and time from which on there is always an answer: what still drifts then is how the job runs."""

_HEAD = 5  # steps that are compared with what follows them
_TOLERANCE = 0.02  # a level this close to the following one counts as reached
_Z = 3.0
_CANDIDATE_GROWTH = 1.1


def warmup_end(step_ns: Samples) -> int | None:
    """Number of leading steps that are warm-up (>= 3), or None while the steps have not settled yet.

    The smallest k up to half of the series such that the steps after k are on one level (:func:`one_level`).
    Steps that stand out at the very beginning of what is left are then taken off as well. None below 15
    steps. From 120 steps and 4 s on there is always an answer, at most half of the series.
    """
    values = as_array(step_ns)
    n = int(values.size)
    if n < MIN_TOTAL_STEPS:
        return None
    last = n // 2
    k = MIN_WARMUP_STEPS
    while k <= last:
        if one_level(values[k:]):
            settled = _skip_outliers(_log_times(values), k, last)
            if settled is not None:
                return settled
            break
        k = max(k + 1, int(k * _CANDIDATE_GROWTH))
    gave_up = n >= GIVE_UP_STEPS and float(values.sum()) >= GIVE_UP_NS
    return last if gave_up else None


def one_level(step_ns: Samples) -> bool:
    """Whether a series (>= 4 steps) stays on one level: no slow start, no drift, no change half-way.

    The median of the first five steps agrees with that of the rest, and so do the medians of the two halves,
    within 2% or three standard errors, whichever is larger. Logarithms are compared, with the noise taken
    from the MAD around each part's own level: single spikes count for little, and a change of level is not
    mistaken for noise.
    """
    logs = _log_times(as_array(step_ns))
    if logs.size < 4:
        return True
    half = logs.size // 2
    head = min(_HEAD, half)
    return _medians_agree(logs[:head], logs[head:]) and _medians_agree(logs[:half], logs[half:])


def drift_fraction(step_ns: Samples) -> float:
    """How much slower the second half of the steps is than the first: median ratio - 1 (negative: faster)."""
    values = as_array(step_ns)
    half = values.size // 2
    if half == 0:
        return 0.0
    return float(np.median(values[half:]) / max(float(np.median(values[:half])), 1.0)) - 1.0


def _log_times(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(values, 1.0)))  # a clock cannot show less than 1 ns


def _medians_agree(left: NDArray[np.float64], right: NDArray[np.float64]) -> bool:
    difference = abs(float(np.median(left)) - float(np.median(right)))
    return difference <= max(_TOLERANCE, _Z * _standard_error(left, right))


def _standard_error(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return the standard error of the difference of two medians, each around its own level: 1.25 sigma sqrt(1/n + 1/m) for
    normal noise.
    """
    sigma = mad(np.concatenate([left - np.median(left), right - np.median(right)]))
    return math.sqrt(math.pi / 2) * sigma * math.sqrt(1 / left.size + 1 / right.size)


def _skip_outliers(logs: NDArray[np.float64], k: int, last: int) -> int | None:
    """Move ``k`` past leading steps that exceed the level of what follows by more than its noise; None beyond ``last``."""
    level, sigma = float(np.median(logs[k:])), mad(logs[k:])
    while k <= last and logs[k] - level > max(_TOLERANCE, _Z * sigma):
        k += 1
    return k if k <= last else None


FIRST_CHECKPOINT = 10
GROWTH = 1.5
MIN_STEPS = 10


def precise_enough(step_ns: Samples, *, ci_fraction: float) -> bool:
    """Whether the 95% interval of the median step reaches at most ``ci_fraction`` of the median to either
    side.

    step_ns: timed steps in the order measured, warm-up left out. Always False below 10 steps. Asking at every
    checkpoint (about 1.5 times the steps of the one before) stops early by luck now and then: the interval
    reported afterwards covers a little less than its 95%.
    """
    if len(step_ns) < MIN_STEPS:
        return False
    step = measured_median(step_ns)
    if step.low is None or step.high is None:
        return False
    return max(step.high - step.value, step.value - step.low) <= ci_fraction * step.value


def checkpoints() -> Iterator[int]:
    """Step counts at which ranks decide together: 10, 15, 22, 33, 49, ... without end."""
    count = FIRST_CHECKPOINT
    while True:
        yield count
        count = int(count * GROWTH)
