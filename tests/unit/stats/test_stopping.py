from __future__ import annotations

import itertools

import numpy as np
import pytest

from stepscope.stats.warmup import checkpoints, precise_enough


def test_every_rank_sees_the_same_checkpoints() -> None:
    assert list(itertools.islice(checkpoints(), 8)) == [10, 15, 22, 33, 49, 73, 109, 163]


def test_quiet_steps_are_precise_enough_at_the_first_checkpoint() -> None:
    steps = 1e7 * np.random.default_rng(0).lognormal(0, 0.002, 10)
    assert precise_enough(steps, ci_fraction=0.02)


def test_noisy_steps_need_more_of_them() -> None:
    steps = 1e7 * np.random.default_rng(0).lognormal(0, 0.1, 2000)
    needed = next(c for c in checkpoints() if precise_enough(steps[:c], ci_fraction=0.02))
    # half-width of the 95% interval of a median: 1.96 x 1.25 x 0.1 / sqrt(n) = 0.02 at n = 150
    assert 70 <= needed <= 400


def test_nine_steps_are_never_precise_enough() -> None:
    assert not precise_enough([1] * 9, ci_fraction=0.5)
    assert precise_enough([1] * 10, ci_fraction=0.5)


def test_one_wide_side_of_the_interval_is_enough_to_go_on() -> None:
    low = [100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 200.0, 200.0]
    assert not precise_enough([*low[8:], *low[:8]], ci_fraction=0.02)


@pytest.mark.parametrize("ci_fraction", [0.01, 0.05])
def test_a_looser_limit_is_never_reached_later(ci_fraction: float) -> None:
    steps = 1e7 * np.random.default_rng(1).lognormal(0, 0.05, 2000)
    stop = {f: next(c for c in checkpoints() if precise_enough(steps[:c], ci_fraction=f)) for f in (ci_fraction, 0.1)}
    assert stop[0.1] <= stop[ci_fraction]
