"""Student's t against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from stepscope.stats.student import mean_interval, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 7, 10, 29, 30, 119, 500, 1001])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.999])
def test_quantiles_are_scipys(freedom: int, confidence: float) -> None:
    assert t_quantile(freedom, confidence=confidence) == pytest.approx(
        student.ppf(0.5 + confidence / 2, freedom), rel=1e-9
    )


def test_the_table_of_every_textbook() -> None:
    assert [round(t_quantile(n), 3) for n in (1, 2, 3, 4, 9)] == [12.706, 4.303, 3.182, 2.776, 2.262]


def test_the_interval_of_a_mean_is_scipys_and_none_below_three_samples() -> None:
    samples = [3.0, 4.0, 8.0, 7.5]
    interval = mean_interval(samples)
    low, high = student.interval(0.95, 3, loc=np.mean(samples), scale=np.std(samples, ddof=1) / 2)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)
    assert mean_interval(samples[:2]) is None
