from __future__ import annotations

import math

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.records.nouns import Measured
from stepscope.stats.compare import bootstrap, bootstrap_median_interval, percentile_interval
from stepscope.stats.order import mad, measured_median, median, median_interval, sign_autocorrelation_time


def test_the_interval_of_ten_samples_is_the_second_smallest_to_the_second_largest() -> None:
    # P(Binomial(10, 1/2) <= 1) = 11/1024 = 0.011 <= 0.025, P(<= 2) = 56/1024 = 0.055 > 0.025: order statistics 2 and 9
    shuffled = [3, 9, 1, 7, 5, 10, 2, 8, 4, 6]
    assert median_interval(shuffled, independent=True) == (2.0, 9.0)


@pytest.mark.parametrize("n", [6, 17, 40, 333])
def test_the_order_statistics_follow_the_binomial_distribution(n: int) -> None:
    interval = median_interval(np.arange(1, n + 1), independent=True)
    k = int(interval[0])
    below = sum(math.comb(n, i) for i in range(k)) / 2**n
    with_next = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert below <= 0.025 < with_next
    assert interval[1] == n + 1 - k


def test_five_samples_have_no_95_percent_interval_and_equal_ones_one_without_width() -> None:
    assert median_interval([1, 2, 3, 4, 5], independent=True) is None
    assert measured_median([42.0]) == Measured(value=42.0, n=1)
    assert measured_median([7.0] * 12) == Measured(value=7.0, low=7.0, high=7.0, n=12)


def _ar1(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    noise = rng.standard_normal(n + 50)
    for i in range(1, noise.size):
        noise[i] = rho * noise[i - 1] + math.sqrt(1 - rho * rho) * noise[i]
    return np.exp(0.1 * noise[50:])


@pytest.mark.parametrize(("n", "rho", "least"), [(20, 0.0, 0.94), (60, 0.3, 0.92), (150, 0.6, 0.90)])
def test_the_interval_covers_the_true_median_as_often_as_it_says(n: int, rho: float, least: float) -> None:
    rng = np.random.default_rng(5)
    intervals = [median_interval(_ar1(rng, n, rho)) for _ in range(400)]
    found = [i for i in intervals if i is not None]
    assert len(found) > 390
    assert np.mean([i[0] <= 1.0 <= i[1] for i in found]) >= least


def test_treating_dependent_samples_as_independent_would_cover_too_rarely() -> None:
    rng = np.random.default_rng(5)
    intervals = [median_interval(_ar1(rng, 150, 0.6), independent=True) for _ in range(300)]
    assert np.mean([i is not None and i[0] <= 1.0 <= i[1] for i in intervals]) < 0.85


def test_independent_samples_have_a_dependence_time_near_one_and_dependent_ones_a_longer_one() -> None:
    rng = np.random.default_rng(0)
    assert np.median([sign_autocorrelation_time(rng.random(200)) for _ in range(100)]) < 1.5
    assert np.median([sign_autocorrelation_time(_ar1(rng, 200, 0.8)) for _ in range(100)]) > 3


def test_mad_of_a_known_series_and_of_normal_samples() -> None:
    assert mad([1, 1, 2, 2, 4, 6, 9]) == pytest.approx(1.4826, rel=1e-4)
    assert mad(np.random.default_rng(1).normal(100, 3, 20_000)) == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_empty_or_non_finite_samples_are_refused(bad: list[float]) -> None:
    with pytest.raises(StepscopeError):
        median(bad)


def test_the_interval_of_a_long_series_is_that_of_the_bootstrap() -> None:
    rng = np.random.default_rng(3)
    values = 20.0 + _ar1(rng, 20_000, 0.5)
    long = bootstrap_median_interval(values, rng=rng)
    resampled = percentile_interval(bootstrap(np.median, values, rng=rng))
    assert long is not None
    assert np.ptp(long) == pytest.approx(np.ptp(resampled), rel=0.2)
    assert np.mean(long) == pytest.approx(np.mean(resampled), abs=0.3 * np.ptp(long))
