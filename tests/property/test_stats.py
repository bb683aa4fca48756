from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from stepscope.core.errors import Unavailable
from stepscope.stats.compare import change, mann_whitney
from stepscope.stats.order import mad, median, median_interval, sign_autocorrelation_time, summary
from stepscope.stats.warmup import precise_enough, warmup_end

times = st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=60)
several = st.lists(st.integers(min_value=1, max_value=10**6), min_size=6, max_size=30)


@given(times)
def test_summary_figures_are_in_order(samples: list[int]) -> None:
    figures = summary(samples)
    assert figures.min <= figures.median <= figures.p90 <= figures.p99 <= figures.max
    assert figures.n == len(samples)
    if figures.low is not None and figures.high is not None:
        assert figures.min <= figures.low <= figures.median <= figures.high <= figures.max


@given(times, st.integers(min_value=1, max_value=1000))
def test_scaling_the_samples_scales_every_figure(samples: list[int], factor: int) -> None:
    plain, scaled = summary(samples), summary([factor * s for s in samples])
    for name in ("median", "mean", "p90", "p99", "min", "max"):
        assert np.isclose(getattr(scaled, name), factor * getattr(plain, name), rtol=1e-9)
    assert (plain.low is None) == (scaled.low is None)


@given(times)
def test_mirroring_the_samples_mirrors_the_interval(samples: list[int]) -> None:
    there, back = median_interval(samples), median_interval([-s for s in samples])
    if there is None or back is None:
        assert there is back is None
    else:
        assert (back.low, back.high) == (-there.high, -there.low)


@given(times)
def test_dependence_only_ever_widens_an_interval(samples: list[int]) -> None:
    plain, careful = median_interval(samples, independent=True), median_interval(samples)
    if careful is not None:
        assert plain is not None
        assert careful.low <= plain.low <= plain.high <= careful.high
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


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=20))
def test_the_order_of_ranks_is_irrelevant(steps: list[list[int]]) -> None:
    figures = {summary([max(ranks[i] for i in order) for ranks in steps]) for order in itertools.permutations(range(3))}
    assert len(figures) == 1


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
    ratio = change(samples, samples)
    assert ratio is not None
    assert (ratio.ratio, ratio.differs) == (1.0, False)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 1.0 <= ratio.high


@given(st.lists(st.integers(1, 10**10), max_size=150).filter(bool))
def test_warmup_is_none_or_between_three_steps_and_half_of_them(samples: list[int]) -> None:
    end = warmup_end(samples)
    assert end is None or 3 <= end <= len(samples) // 2


@given(times)
def test_a_looser_limit_is_met_whenever_a_tighter_one_is(samples: list[int]) -> None:
    if precise_enough(samples, ci_fraction=0.01):
        assert precise_enough(samples, ci_fraction=0.1)
