from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepscope.stats.warmup import checkpoints, drift_fraction, one_level, warmup_end

STEP_NS = 10_000_000
Shape = Callable[[np.ndarray], np.ndarray]


def _series(
    rng: np.random.Generator, n: int, shape: Shape = np.ones_like, *, noise: float = 0.03, spikes: float = 0.0
) -> np.ndarray:
    times = STEP_NS * shape(np.arange(n, dtype=float)) * rng.lognormal(0, noise, n)
    times[rng.random(n) < spikes] *= rng.uniform(2, 10)
    return times


def _ends(shape: Shape = np.ones_like, *, n: int = 60, repeats: int = 60, **kwargs: float) -> list[int | None]:
    rng = np.random.default_rng(11)
    return [warmup_end(_series(rng, n, shape, **kwargs)) for _ in range(repeats)]


def _slow_until(step: int, factor: float) -> Shape:
    return lambda i: np.where(i < step, factor, 1.0)


@pytest.mark.parametrize("noise", [0.005, 0.03, 0.1, 0.3])
def test_steady_steps_are_past_warmup_after_the_minimum(noise: float) -> None:
    ends = _ends(noise=noise)
    assert sum(end == 3 for end in ends) >= 0.9 * len(ends)
    assert None not in ends


@pytest.mark.parametrize("spikes", [0.05, 0.15])
def test_scheduler_spikes_are_not_warmup(spikes: float) -> None:
    ends = _ends(noise=0.05, spikes=spikes)
    assert sum(end is not None and end <= 5 for end in ends) >= 0.9 * len(ends)


def test_a_slow_first_step_and_a_bucket_rebuild_in_the_second_need_only_the_minimum() -> None:
    ends = _ends(lambda i: np.where(i == 0, 20.0, np.where(i == 1, 4.0, 1.0)))
    assert sum(end == 3 for end in ends) >= 0.9 * len(ends)


@pytest.mark.parametrize("length", [5, 8, 12, 20, 28])
@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_a_slower_start_is_found_to_within_one_step(length: int, factor: float) -> None:
    ends = _ends(_slow_until(length, factor))
    assert sum(end is not None and length - 1 <= end <= length + 2 for end in ends) >= 0.9 * len(ends)


def test_a_slope_that_levels_out_is_warmup_until_it_is_within_the_noise() -> None:
    ends = [end for end in _ends(lambda i: 1 + 0.5 * np.exp(-i / 8)) if end is not None]
    assert len(ends) >= 50
    assert np.all([1 + 0.5 * np.exp(-end / 8) < 1.2 for end in ends])


def test_steps_that_still_change_level_late_have_no_end_of_warmup_yet() -> None:
    assert set(_ends(lambda i: np.where(i < 45, 2.0, 1.0))) == {None}


def test_a_steady_drift_never_settles_but_does_not_measure_warmup_for_ever() -> None:
    def drifting(i: np.ndarray) -> np.ndarray:
        return 1 + 0.01 * i

    assert set(_ends(drifting, noise=0.005)) == {None}
    rng = np.random.default_rng(0)
    long = _series(rng, 600, drifting, noise=0.005)
    assert long.sum() > 4e9
    assert warmup_end(long) == 300


def test_below_ten_steps_nothing_is_decided() -> None:
    assert warmup_end([STEP_NS] * 9) is None
    assert warmup_end([STEP_NS] * 10) == 3


def test_the_first_answer_of_the_shared_schedule_is_early_on_a_noisy_machine() -> None:
    rng = np.random.default_rng(2)
    asked = []
    for _ in range(60):
        series = _series(rng, 100, noise=0.15, spikes=0.05)
        asked.append(next(c for c in checkpoints() if warmup_end(series[:c]) is not None))
    assert np.quantile(asked, 0.9) <= 15


def test_one_level_is_false_for_a_drift_and_the_drift_has_a_size() -> None:
    rng = np.random.default_rng(3)
    drifting = _series(rng, 100, lambda i: 1 + 0.004 * i, noise=0.01)
    assert not one_level(drifting)
    assert drift_fraction(drifting) == pytest.approx(0.2 / 1.1, abs=0.04)
    steady = _series(rng, 100, noise=0.01)
    assert one_level(steady)
    assert abs(drift_fraction(steady)) < 0.01
