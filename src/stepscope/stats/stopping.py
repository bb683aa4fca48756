"""When to stop measuring. The rank half asks these at the same step counts on every rank."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.stats.order import Samples, median, median_interval

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
    interval = median_interval(step_ns)
    if interval is None:
        return False
    middle = median(step_ns)
    return max(interval.high - middle, middle - interval.low) <= ci_fraction * middle


def checkpoints(*, first: int = FIRST_CHECKPOINT, growth: float = GROWTH) -> Iterator[int]:
    """Step counts at which ranks decide together: 10, 15, 22, 33, 49, ... without end."""
    count = first
    while True:
        yield count
        count = max(count + 1, int(count * growth))
