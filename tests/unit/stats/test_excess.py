"""A rank is slow where it takes longer than the others in the median step, by more than the noise."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.stats.compare import chronic_excess


@pytest.mark.parametrize(("late", "fires"), [(0.04, False), (0.06, True)])
def test_five_per_cent_in_the_median_step_decides(late: float, fires: bool) -> None:
    rng = np.random.default_rng(1)
    others = rng.normal(100.0, 1.0, 40)
    found = chronic_excess(late * 100.0 + rng.normal(0.0, 0.5, 40), others)
    assert (found is not None) is fires


def test_what_noise_could_have_made_is_no_excess() -> None:
    wild = np.random.default_rng(2).normal(0.0, 30.0, 40)
    wild += 6.0 - np.median(wild)
    assert chronic_excess(wild, np.full(40, 100.0)) is None


def test_fewer_than_twenty_steps_tell_nothing() -> None:
    assert chronic_excess(np.full(19, 50.0), np.full(19, 100.0)) is None
    found = chronic_excess(np.full(20, 50.0), np.full(20, 100.0))
    assert (found.excess_ns, found.low_ns, found.others_ns) == (50.0, 50.0, 100.0)
