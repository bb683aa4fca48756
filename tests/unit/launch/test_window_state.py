from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.launch.job_window import WindowWait
from stepscope.records.profile import HookedRank, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record


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
