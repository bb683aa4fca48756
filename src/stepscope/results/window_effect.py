"""Whether a window of profiled steps changed how long the steps after it take: then that is the tool's doing, not the job's.

A trace that is written leaves the allocator of the C library with other thresholds (glibc raises them with the largest block
that is freed), and the job's own allocations may cost less, or more, from there on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.records.nouns import Measured
from stepscope.stats.compare import bootstrap_median_interval
from stepscope.stats.order import MOST_TREND

LEAST, MOST = 12, 60
"""Steps on either side that are compared: their medians have intervals, and the job has not moved meanwhile."""

NEAR, JUMP = 6, 0.6
"""Steps next to the window on either side, and how much of the change lies between them at least: one elsewhere, or one that
comes gradually, is the job's."""

LEAST_CHANGE = 0.05
"""Least relative change that counts: what runs of one job differ by, and more."""

_SEED = 20_261_127


@record
class WindowEffect:
    """What a window of profiled steps did. first, last: numbers of the window's steps, its warm-up and the step in which its
    trace is written included. before, after: median ns of as many timed steps on either side."""

    first: int
    last: int
    before: Measured
    after: Measured

    def holds(self, number: int) -> bool:
        """Whether a change of level that is dated to this step may be the window's: a date is a few steps exact."""
        return self.first - NEAR <= number <= self.last + NEAR


def window_effect(
    step_ns: NDArray[np.float64], numbers: NDArray[np.int64], first: int, last: int
) -> WindowEffect | None:
    """Return what the window changed; None where the levels on both sides agree within noise, the change is elsewhere, or
    there are too few steps to tell.

    step_ns, numbers: of the timed steps, in order. first, last: numbers of the window's steps.
    """
    before, after = step_ns[numbers < first], step_ns[numbers > last]
    count = min(before.size, after.size, MOST)
    if count < LEAST:
        return None
    before, after = before[-count:], after[:count]
    rng = np.random.default_rng(_SEED)
    ends = [bootstrap_median_interval(side, rng=rng) for side in (before, after)]
    levels = [float(np.median(side)) for side in (before, after)]
    moved = levels[1] - levels[0]
    if None in ends or abs(moved) < LEAST_CHANGE * levels[0]:
        return None
    medians = [Measured.between(level, end, n=count) for level, end in zip(levels, ends, strict=True)]
    low, high = sorted(medians, key=lambda level: level.value)
    if low.high is None or high.low is None or low.high >= high.low:
        return None
    jump = float(np.median(after[:NEAR]) - np.median(before[-NEAR:]))
    drifts = [abs(float(np.median(side[: count // 2]) - np.median(side[count // 2 :]))) for side in (before, after)]
    if jump / moved < JUMP or max(drifts) > MOST_TREND * abs(moved):
        return None
    return WindowEffect(first=first, last=last, before=medians[0], after=medians[1])
