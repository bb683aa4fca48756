from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.stats.compare import (
    block_length,
    bootstrap,
    bootstrap_median_interval,
    percentile_interval,
    ratio_of_means,
    rounds_median_interval,
)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_same_generator_seed_gives_the_same_interval() -> None:
    samples = _rng(3).lognormal(0, 0.2, 40)
    first, again = (bootstrap_median_interval(samples, rng=_rng(1)) for _ in range(2))
    assert first == again
    assert first[0] < np.median(samples) < first[1]


def test_resamples_are_made_of_consecutive_samples() -> None:
    # 0 and 100 alternate in runs of ten: with blocks of ten every resample keeps the runs nearly whole
    samples = np.repeat([0.0, 100.0], 10)
    assert set(bootstrap(np.median, samples, rng=_rng(), block=20)) == {50.0}


def test_blocks_widen_the_interval_of_dependent_samples() -> None:
    walk = np.cumsum(_rng(2).standard_normal(200)) * 0.01 + 10
    single = percentile_interval(bootstrap(np.median, walk, rng=_rng(), block=1))
    blocks = bootstrap_median_interval(walk, rng=_rng())
    assert blocks is not None
    assert np.ptp(blocks) > 2 * np.ptp(single)
    assert bootstrap_median_interval(walk[:5], rng=_rng()) is None
    assert block_length(walk) > block_length(_rng().random(200))


def test_rounds_that_differ_widen_the_interval_beyond_that_of_the_pooled_samples() -> None:
    rng = _rng(7)
    rounds = [level * rng.lognormal(0, 0.01, 30) for level in (1.0, 1.1, 1.2)]
    over_rounds = rounds_median_interval(rounds, rng=_rng())
    assert over_rounds[0] < 1.02
    assert over_rounds[1] > 1.18
    with pytest.raises(StepscopeError):
        rounds_median_interval([[1.0] * 10], rng=_rng())


def test_a_ratio_of_means_and_its_interval() -> None:
    top, bottom = _rng(1).normal(10, 0.5, 40), _rng(2).normal(5, 0.1, 40)
    found = ratio_of_means(top, bottom, rng=_rng())
    assert found.value == pytest.approx(top.mean() / bottom.mean())
    assert found.low < found.value < found.high
    standard_error = np.hypot(0.5 / 10, 0.1 / 5) / np.sqrt(40) * 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * standard_error, rel=0.35)


def test_a_ratio_of_means_sees_the_outlier_that_medians_do_not() -> None:
    steady = [1.0] * 19
    means = ratio_of_means([*steady, 21.0], [1.0] * 20, rng=_rng())
    assert means.value == pytest.approx(2.0)


def test_means_of_few_samples_have_no_interval_and_zero_is_refused() -> None:
    assert ratio_of_means([2.0] * 5, [1.0] * 40, rng=_rng()).low is None
    with pytest.raises(StepscopeError, match="positive"):
        ratio_of_means([0.0, 1.0], [1.0], rng=_rng())
