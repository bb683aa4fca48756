"""Whether a window moved the level of the steps after it: planted at the window, elsewhere, nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.diaries import job, write_diary, write_record

from stepscope.records.profile import FIRST, PROFILED, WINDOW
from stepscope.results.job_change import job_change
from stepscope.results.window_effect import WindowEffect, window_effect

WINDOW_STEPS = range(41, 51)
"""Numbers: warm-up, eight profiled steps, the one with the writing of the trace."""


def _effect(times: np.ndarray) -> WindowEffect | None:
    numbers = np.setdiff1d(np.arange(1, times.size + 1), WINDOW_STEPS)
    return window_effect(times[numbers - 1], numbers, WINDOW_STEPS[0], WINDOW_STEPS[-1])


def _times(rng: np.random.Generator, *, before: float, after: float, at: int = 50, steps: int = 120) -> np.ndarray:
    level = np.where(np.arange(1, steps + 1) <= at, before, after)
    return level * 1e6 * rng.lognormal(0, 0.04, steps)


@pytest.mark.parametrize("after", [6.6, 9.0, 12.0, 18.0])
def test_a_level_that_changes_at_the_window_is_the_windows(after: float) -> None:
    found = [_effect(_times(np.random.default_rng(seed), before=10, after=after)) for seed in range(40)]
    seen = [each for each in found if each is not None]
    assert len(seen) >= 38
    for each in seen:
        assert each.before.value == pytest.approx(10e6, rel=0.05)
        assert each.after.value == pytest.approx(after * 1e6, rel=0.05)
        assert (each.first, each.last) == (41, 50)


@pytest.mark.parametrize("at", [25, 65, 80, 100])
def test_a_level_that_changes_elsewhere_is_the_jobs(at: int) -> None:
    found = [_effect(_times(np.random.default_rng(seed), before=10, after=13, at=at)) for seed in range(40)]
    assert not any(found)


def test_noise_is_no_effect() -> None:
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        slow = np.convolve(rng.normal(0, 0.1, 140), np.ones(10) / 10, "same")[:120]
        found += _effect(_times(rng, before=10, after=10) * np.exp(slow)) is not None
    assert found <= 4


def test_a_drift_is_no_effect() -> None:
    times = 10e6 * np.linspace(1, 1.6, 120) * np.random.default_rng(0).lognormal(0, 0.02, 120)
    assert _effect(times) is None


def _write(folder: Path, *, steps: int, before: float, after: float) -> None:
    flags = [FIRST] + [0] * (steps - 1)
    for number in WINDOW_STEPS:
        flags[number - 1] = WINDOW if number in (WINDOW_STEPS[0], WINDOW_STEPS[-1]) else PROFILED
    rng = np.random.default_rng(0)
    level = np.where(np.arange(1, steps + 1) <= 50, before, after)
    optimizer = level * rng.lognormal(0, 0.02, steps)
    write_diary(write_record(folder), {"forward": [6.0] * steps, "optimizer": optimizer}, flags=flags)


def test_sizes_are_those_before_a_window_that_moved_them(tmp_path: Path) -> None:
    _write(tmp_path, steps=150, before=5.7, after=2.8)
    steps = job(tmp_path).steps
    assert steps is not None
    assert steps.window is not None
    assert int(steps.numbers.max()) == 40
    assert float(np.median(steps.parts_ns["optimizer"])) == pytest.approx(5.7e6, rel=0.02)
    assert job_change(steps) is None


def test_of_a_long_job_sizes_are_those_after_and_the_window_is_no_change(tmp_path: Path) -> None:
    _write(tmp_path, steps=1000, before=5.7, after=2.8)
    steps = job(tmp_path).steps
    assert steps is not None
    assert steps.window is not None
    assert int(steps.numbers.max()) == 1000
    assert float(np.median(steps.parts_ns["optimizer"])) == pytest.approx(2.8e6, rel=0.02)
    assert job_change(steps) is None


def test_a_change_after_the_window_is_the_jobs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    forward = np.where(np.arange(1000) < 500, 6.0, 8.0) * rng.lognormal(0, 0.02, 1000)
    flags = [FIRST if at == 0 else PROFILED if at + 1 in WINDOW_STEPS else 0 for at in range(1000)]
    write_diary(write_record(tmp_path), {"forward": forward}, flags=flags)
    steps = job(tmp_path).steps
    assert steps is not None
    assert steps.window is None
    change = job_change(steps)
    assert change is not None
    assert change.step == pytest.approx(501, abs=20)
