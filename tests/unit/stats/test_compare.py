from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks._rounds import compare_rounds

from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.stats.compare import MannWhitney, change, mann_whitney, row_p_values


def _result(first: list[float], second: list[float]) -> MannWhitney:
    result = mann_whitney(first, second)
    assert isinstance(result, MannWhitney)
    return result


def test_complete_separation_of_four_and_four_has_the_smallest_possible_p() -> None:
    result = _result([5, 6, 7, 8], [1, 2, 3, 4])
    assert result.u == 16
    assert result.p_value == pytest.approx(2 / 70)  # C(8, 4) = 70 ways, two of them as extreme
    assert result.exact


def test_the_exact_p_counts_all_ways_of_dealing_the_ranks_with_ties() -> None:
    first, second = [1.0, 2.0, 2.0, 5.0], [2.0, 4.0, 5.0, 6.0, 7.0]
    pooled = first + second

    def u(picked: tuple[int, ...]) -> float:
        rest = [pooled[i] for i in range(9) if i not in picked]
        return sum((a > b) + 0.5 * (a == b) for a in (pooled[i] for i in picked) for b in rest)

    mean = 4 * 5 / 2
    distance = abs(u((0, 1, 2, 3)) - mean)
    ways = list(itertools.combinations(range(9), 4))
    expected = sum(abs(u(w) - mean) >= distance - 1e-12 for w in ways) / len(ways)
    result = _result(first, second)
    assert result.u == u((0, 1, 2, 3))
    assert result.p_value == pytest.approx(expected)


def test_three_against_three_is_refused_with_the_reason() -> None:
    result = mann_whitney([1, 2, 3], [4, 5, 6])
    assert isinstance(result, Unavailable)
    assert "3 + 3 replicates" in result.reason


def test_the_normal_approximation_takes_over_above_forty_and_agrees_with_the_exact_p() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 20), rng.normal(0.7, 1, 20)
    exact = _result(list(a), list(b))
    approximate = _result([*a, float(np.median(a))], [*b, float(np.median(b))])
    assert exact.exact
    assert not approximate.exact
    assert approximate.p_value == pytest.approx(exact.p_value, abs=0.02)


def test_all_values_equal_is_no_evidence_of_anything() -> None:
    assert _result([1.0] * 4, [1.0] * 5).p_value == 1.0
    assert _result([1.0] * 30, [1.0] * 30).p_value == 1.0


def test_pairing_by_round_takes_out_a_drift_that_both_sides_share() -> None:
    rng = np.random.default_rng(1)
    drift = np.linspace(1.0, 3.0, 12)
    a = [1.10 * d * rng.lognormal(0, 0.01, 30) for d in drift]
    b = [1.00 * d * rng.lognormal(0, 0.01, 30) for d in drift]
    again = [1.10 * d * rng.lognormal(0, 0.01, 30) for d in drift]
    result = compare_rounds(a, b, a_again=again, rng=rng)
    assert result.ratio.value == pytest.approx(1.10, rel=0.01)
    assert result.ratio.low > 1
    assert result.aa.low <= 1 <= result.aa.high
    assert result.aa_spread_fraction < 0.02


def test_three_rounds_give_a_ratio_but_no_interval() -> None:
    result = compare_rounds([[2.0]] * 3, [[1.0]] * 3, rng=np.random.default_rng(0))
    assert result.ratio.value == pytest.approx(2.0)
    assert result.ratio.low is None
    assert isinstance(result.test, Unavailable)
    assert result.aa_spread_fraction is None


def test_five_rounds_give_an_interval_within_what_was_seen() -> None:
    a = [[2.0], [2.2], [1.8], [2.1], [1.9]]
    result = compare_rounds(a, [[1.0]] * 5, rng=np.random.default_rng(0))
    assert 1.8 <= result.ratio.low < 2.0 < result.ratio.high <= 2.2


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(StepscopeError):
        compare_rounds([[1.0]], [[1.0], [1.0]], rng=np.random.default_rng(0))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 9), (12, 20)])
def test_without_ties_p_is_scipys_exact_one(n: int, m: int) -> None:
    from scipy.stats import mannwhitneyu  # takes a second, in every process that collects this file

    rng = np.random.default_rng(n * m)
    first, second = rng.normal(0.7, 1, n), rng.normal(0, 1, m)
    expected = mannwhitneyu(first, second, method="exact")
    found = mann_whitney(first, second)
    assert isinstance(found, MannWhitney)
    assert (found.u, found.p_value) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)


def test_a_change_is_the_ratio_of_medians_with_interval_and_test() -> None:
    rng = np.random.default_rng(2)
    found = change(10 * rng.lognormal(0, 0.02, 12), 14 * rng.lognormal(0, 0.02, 12))
    assert found.ratio.value == pytest.approx(1.4, rel=0.03)
    assert found.ratio.low < found.ratio.value < found.ratio.high  # type: ignore[operator]
    assert found.outcome == "more"
    few = change([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])
    assert (few.ratio.value, few.outcome, few.ratio.low) == (pytest.approx(2.1 / 1.1), "not tested", None)
    assert change([0.0] * 6, [1.0] * 6) is None


def test_one_row_that_changed_is_found_among_three_hundred_with_six_steps_a_side() -> None:
    rng = np.random.default_rng(3)
    first, second = (100 * rng.lognormal(0, 0.02, (6, 300)) for _ in range(2))
    second[:, 17] *= 1.5
    p_values = row_p_values(first, second)
    assert not isinstance(p_values, Unavailable)
    assert p_values[17] == pytest.approx(2 / 924)  # of 924 ways of dealing 6 + 6 steps, only this one and its mirror
    assert np.delete(p_values, 17).min() > 0.05


def test_rows_of_equal_sides_are_all_insignificant_in_nineteen_of_twenty_comparisons() -> None:
    rng = np.random.default_rng(4)
    smallest = []
    for _ in range(60):
        found = row_p_values(rng.lognormal(0, 0.1, (5, 40)), rng.lognormal(0, 0.1, (5, 40)))
        assert not isinstance(found, Unavailable)
        smallest.append(found.min())
    assert np.mean(np.array(smallest) < 0.05) < 0.15


def test_rows_that_never_vary_and_few_steps() -> None:
    found = row_p_values(np.array([[1.0, 5.0]] * 4), np.array([[1.0, 7.0]] * 4))
    assert not isinstance(found, Unavailable)
    assert found.tolist() == [1.0, pytest.approx(2 / 70)]
    assert isinstance(row_p_values(np.ones((3, 2)), np.ones((6, 2))), Unavailable)


def test_many_steps_are_dealt_at_random_and_the_smallest_p_is_one_of_all_deals() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.lognormal(0, 0.02, (20, 3)), 2 * rng.lognormal(0, 0.02, (20, 3))
    found = row_p_values(first, second)
    assert not isinstance(found, Unavailable)
    assert found.max() < 0.01
