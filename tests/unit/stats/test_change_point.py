"""One change of level in a series: found where it was planted, and claimed no more often than chance allows."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.errors import Unavailable
from stepscope.stats.change_point import change_point


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
