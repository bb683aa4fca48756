from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from stepscope.core.errors import Unavailable
from stepscope.stats.compare import change, mann_whitney
from stepscope.stats.order import mad, measured_median, median, median_interval, sign_autocorrelation_time
from stepscope.stats.warmup import precise_enough, warmup_end

times = st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=60)
several = st.lists(st.integers(min_value=1, max_value=10**6), min_size=6, max_size=30)


@given(times)
def test_a_median_is_inside_its_interval_and_inside_the_samples(samples: list[int]) -> None:
    found = measured_median(samples)
    ends = [found.value] if found.low is None or found.high is None else [found.low, found.value, found.high]
    assert [min(samples), *ends, max(samples)] == sorted([min(samples), *ends, max(samples)])
    assert found.n == len(samples)


@given(times)
def test_mirroring_the_samples_mirrors_the_interval(samples: list[int]) -> None:
    there, back = median_interval(samples), median_interval([-s for s in samples])
    if there is None or back is None:
        assert there is back is None
    else:
        assert back == (-there[1], -there[0])


@given(times)
def test_dependence_only_ever_widens_an_interval(samples: list[int]) -> None:
    plain, careful = median_interval(samples, independent=True), median_interval(samples)
    if careful is not None:
        assert careful[0] <= plain[0] <= plain[1] <= careful[1]
    assert sign_autocorrelation_time(samples) >= 1.0


@given(times)
def test_mad_does_not_see_a_shift(samples: list[int]) -> None:
    assert np.isclose(mad(samples), mad([s + 17 for s in samples]), rtol=1e-9, atol=1e-3)


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=30))
def test_the_median_of_the_slowest_rank_is_at_least_the_largest_median_of_a_rank(
    steps: list[list[int]],
) -> None:
    slowest = median([max(ranks) for ranks in steps])
    assert slowest >= max(median(rank) for rank in zip(*steps, strict=True))


@given(several, several)
def test_swapping_the_sides_of_mann_whitney_keeps_p(first: list[int], second: list[int]) -> None:
    there, back = mann_whitney(first, second), mann_whitney(second, first)
    assert not isinstance(there, Unavailable)
    assert not isinstance(back, Unavailable)
    assert there.u + back.u == len(first) * len(second)
    assert np.isclose(there.p_value, back.p_value)
    assert 0 < there.p_value <= 1


@examples(30)
@given(several)
def test_a_series_against_itself_has_ratio_one_inside_its_interval(samples: list[int]) -> None:
    found = change(samples, samples)
    assert (found.ratio.value, found.outcome) == (1.0, "no significant difference")
    assert found.ratio.low is not None


@given(st.lists(st.integers(1, 10**10), max_size=150).filter(bool))
def test_warmup_is_none_or_between_three_steps_and_half_of_them(samples: list[int]) -> None:
    end = warmup_end(samples)
    assert end is None or 3 <= end <= len(samples) // 2


@given(times)
def test_a_looser_limit_is_met_whenever_a_tighter_one_is(samples: list[int]) -> None:
    if precise_enough(samples, ci_fraction=0.01):
        assert precise_enough(samples, ci_fraction=0.1)
