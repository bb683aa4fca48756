"""One change of level in a series: found where it was planted, and claimed no more often than chance allows."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.errors import Unavailable
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
