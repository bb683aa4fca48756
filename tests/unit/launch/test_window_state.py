from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stepscope.launch.hooked_job import WindowState


def state(*ranks: tuple[tuple[int, ...], tuple[int, ...]]) -> WindowState:
    made: list[Any] = [SimpleNamespace(status="written", unprofiled_ns=a, profiled_ns=b) for a, b in ranks]
    return WindowState(expected=None, reports=tuple(made))


def test_step_times_are_medians_over_ranks_of_each_ranks_median() -> None:
    assert state(((10, 20, 90), (30,)), ((40,), (50, 60, 70))).step_ns == (30, 45)
    assert state(((10,), ())).step_ns is None
    assert state().step_ns is None
