"""The usual figures of one series."""

from __future__ import annotations

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.stats.order import Samples, as_array, median_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of one series in the unit of its samples; ``low``/``high``: 95% interval of the median, or
    None.
    """

    n: int
    median: float
    low: float | None
    high: float | None
    mean: float
    p90: float
    p99: float
    min: float
    max: float


def summary(samples: Samples) -> Summary:
    """Median with its interval, mean, p90, p99 (linear between samples), min and max; refuses an empty list."""
    values = as_array(samples)
    interval = median_interval(values)
    p90, p99 = np.quantile(values, [0.9, 0.99])
    return Summary(
        n=int(values.size),
        median=float(np.median(values)),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        mean=float(values.mean()),
        p90=float(p90),
        p99=float(p99),
        min=float(values.min()),
        max=float(values.max()),
    )
