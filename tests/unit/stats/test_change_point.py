"""One change of level in a series: found where it was planted, and claimed no more often than chance allows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable
from stepscope.stats.lasting_change import LEAST_STEPS, lasting_change
from stepscope.stats.order import change_point, level_change


def test_a_planted_change_is_found_where_it_is() -> None:
    found = change_point([10.0, 10.2, 9.9, 10.1, 10.05, 12.1, 12.0, 12.3, 11.9, 12.2])
    assert not isinstance(found, Unavailable)
    assert (found.at, found.before, found.after) == (5, 10.05, 12.1)
    assert found.significant


def test_the_exact_p_value_of_eight_runs_in_two_halves() -> None:
    found = change_point([1, 2, 3, 4, 11, 12, 13, 14])
    assert not isinstance(found, Unavailable)
    # Only 4 + 4 without overlap scores as much: 2 x 4! x 4! of 8! orders.
    assert found.p_value == pytest.approx(2 * 24 * 24 / 40320)


def test_fewer_than_six_runs_and_equal_ones_are_no_evidence() -> None:
    assert isinstance(change_point([1, 1, 1, 9, 9]), Unavailable)
    assert isinstance(change_point([3.0] * 9), Unavailable)


def test_one_odd_run_is_no_change() -> None:
    found = change_point([10, 10.1, 9.9, 10.05, 9.95, 10.02, 10.08, 30])
    assert not isinstance(found, Unavailable)
    assert not found.significant


@pytest.mark.parametrize("size", [7, 12])
def test_noise_alone_is_called_a_change_in_one_of_twenty(size: int) -> None:
    rng = np.random.default_rng(7)
    found = [change_point(rng.normal(10, 0.3, size)) for _ in range(100)]
    assert sum(not isinstance(each, Unavailable) and each.significant for each in found) <= 11


@pytest.mark.parametrize("at", [10, 19, 150, 290])
def test_a_long_series_changes_where_it_was_planted(at: int) -> None:
    rng = np.random.default_rng(at)
    values = np.where(np.arange(300) < at, 100.0, 118.0) + rng.normal(0, 1.0, 300)
    values[[3, 200]] = 900.0  # single pauses are no level
    found = level_change(values)
    assert (found.at, round(found.before), round(found.after)) == (at, 100, 118)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(100, 130, 300),  # a drift begins nowhere
        np.where(np.arange(300) < 295, 100.0, 118.0),  # five steps are a pause
        np.where(np.arange(300) < 150, 100.0, 104.0),  # 4%
        np.tile([100.0, 130.0], 150),  # two levels in turn
        [100.0] * 10 + [118.0] * 10,  # too few to know a level
    ],
    ids=["drift", "pause", "small", "in turn", "few"],
)
def test_what_is_no_change_of_level(values: np.ndarray) -> None:
    assert level_change(values + 0.0 * np.arange(len(values))) is None


def dependent(rng: np.random.Generator, size: int, *, sigma: float = 0.05, rho: float = 0.3) -> NDArray[np.float64]:
    """Logarithms about 0, autocorrelated."""
    drawn, found = rng.normal(0, sigma, size), np.empty(size)
    found[0] = drawn[0]
    for at in range(1, size):
        found[at] = rho * found[at - 1] + np.sqrt(1 - rho**2) * drawn[at]
    return found


def test_a_change_of_3_percent_in_10_000_steps_is_found_within_200_steps() -> None:
    at = np.arange(10_000)
    places = []
    for seed in range(20):
        found = lasting_change(np.exp(dependent(np.random.default_rng(seed), at.size) + np.log(1.03) * (at >= 6000)))
        places += [] if found is None else [found.at]
        assert found is None or found.ratio.value == pytest.approx(1.03, abs=0.005)
    assert len(places) >= 19
    assert max(abs(place - 6000) for place in places) <= 200


CLEAN = {
    "as ever": lambda at, _: 0.0 * at,
    "warm-up": lambda at, _: 0.5 * np.exp(-at / 300),
    "drift": lambda at, _: 0.1 * at / at.size,
    "small": lambda at, _: 0.012 * (at >= at.size / 2),
    "every 100th step": lambda at, _: np.log(3) * (at % 100 == 0),
    "pauses": lambda at, rng: np.log(10) * (rng.random(at.size) < 0.05),
    "two kinds in turn": lambda at, _: 0.3 * (at % 2),
    "two kinds at random": lambda at, rng: 0.3 * (rng.random(at.size) < 0.5),
    "spell": lambda at, _: 0.08 * ((at >= 5000) & (at < 5500)),
    "sawtooth": lambda at, _: 0.1 * ((at % 1000) / 1000),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_comes_back_or_comes_gradually_is_no_lasting_change(name: str) -> None:
    at = np.arange(10_000)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert lasting_change(np.exp(dependent(rng, at.size) + CLEAN[name](at, rng))) is None
    few = LEAST_STEPS - 1
    assert lasting_change(np.exp(dependent(rng, few, sigma=0.01) + 0.3 * (at[:few] > 100))) is None
