from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.launch.job_window import WindowState, WindowWait
from stepscope.records.profile import HookedRank, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record


def state(*ranks: tuple[tuple[int, ...], tuple[int, ...]]) -> WindowState:
    made: list[Any] = [SimpleNamespace(status="written", unprofiled_ns=a, profiled_ns=b) for a, b in ranks]
    return WindowState(expected=None, reports=tuple(made))


def test_step_times_are_medians_over_ranks_of_each_ranks_median() -> None:
    assert state(((10, 20, 90), (30,)), ((40,), (50, 60, 70))).step_ns == (30, 45)
    assert state(((10,), ())).step_ns is None
    assert state().step_ns is None


@pytest.mark.parametrize(
    ("asked", "expected", "unknown"), [((5,), (), (5,)), ((1, 5, 9), (1,), (5, 9)), (None, (0, 1), ())]
)
def test_ranks_that_are_asked_and_that_the_job_does_not_have_are_not_waited_for(
    tmp_path: Path, asked: tuple[int, ...] | None, expected: tuple[int, ...], unknown: tuple[int, ...]
) -> None:
    layout = ProfileLayout(tmp_path)
    layout.control.mkdir()
    rank = HookedRank(
        rank=0, world_size=2, host="elsewhere", pid=1, restart=0, python="3.11", torch="2.9", local_rank="0"
    )
    write_record(layout.control / "rank-00000.json", rank)
    request = WindowRequest(steps=3, wait=9, warmup=1, fixed_step=9, collect=(), ranks=asked)
    wait = WindowWait(layout, 1, request)
    assert wait.look() == (expected == ()), "no rank is left to wait for"
    found = wait.state
    assert (found.expected, found.unknown, found.world_size) == (expected, unknown, 2)
