"""Where windows begin and end, without torch: rank 0 decides for all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MS = 1_000_000
REQUEST = {
    "steps": "auto",
    "wait": "auto",
    "warmup": 1,
    "fixed_step": 20,
    "collect": [],
    "ranks": None,
    "duration_s": None,
}


class Rank:
    """One rank and its plans; windows that begin are noted, not recorded."""

    def __init__(self, hook: Any, folder: Path, rank: int, world: int, *, sees: bool = True, ms: float = 10) -> None:
        control = hook.control.Control({"output": str(folder), "tool_version": "0"})
        control.shared = sees
        diary = SimpleNamespace(times=[], first_ns=0)
        self.ms, self.diary = ms, diary
        self.steps = SimpleNamespace(control=control, rank=rank, world=world, restart=0, diary=diary)
        self.plans = hook.plans.Plans(self.steps)
        self.began: tuple[int, Any, Any] | None = None
        self.plans.begin = self.begin
        self.count = 0

    def begin(self, plan: Any, count: int) -> None:
        self.began = (count, plan.request["steps"], plan.request["warmup"])
        self.plans.planned = None
        self.plans.awaited = "/none"

    def step(self, request: dict[str, Any]) -> None:
        self.count += 1
        if self.count == 1:
            if self.steps.control.shared:
                self.steps.control.write("profile_rank/1", f"rank-{self.steps.rank:05d}.json", {"host": "a"})
            self.diary.first_ns = self.ms * MS
            self.plans.await_next(request)
        else:
            self.diary.times.append(self.ms * MS)
        self.plans.step(self.count)


def _train(ranks: list[Rank], count: int, **request: Any) -> list[Any]:
    for _ in range(count):
        for each in ranks:
            each.step(REQUEST | request)
    return [each.began for each in ranks]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("wait", "fixed"), [("auto", 20), (0, 1), (2, 2), (9, 9)])
def test_every_rank_begins_at_the_same_step(hook: Any, tmp_path: Path, wait: Any, fixed: int, order: int) -> None:
    ranks = [Rank(hook, tmp_path, rank, 3) for rank in range(3)][::order]
    began = _train(ranks, 30, wait=wait, fixed_step=fixed)
    assert len(set(began)) == 1
    assert began[0][1] == 8
    assert began[0][0] >= (wait if wait != "auto" else 0)


@pytest.mark.parametrize(("wait", "fixed"), [("auto", 20), (2, 2)])
def test_a_rank_that_does_not_see_the_folder_begins_with_the_others(
    hook: Any, tmp_path: Path, wait: Any, fixed: int
) -> None:
    ranks = [Rank(hook, tmp_path, rank, 3, sees=rank != 2) for rank in range(3)]
    assert set(_train(ranks, 30, wait=wait, fixed_step=fixed)) == {(max(fixed, 5), 8, 1)}


def test_a_single_rank_begins_at_once_where_asked(hook: Any, tmp_path: Path) -> None:
    assert _train([Rank(hook, tmp_path, 0, 1)], 3, wait=0, fixed_step=1) == [(1, 8, 1)]


@pytest.mark.parametrize(("ms", "begins", "steps"), [(1500, 2, 8), (4000, 2, 3), (8000, 1, 1)])
def test_steps_that_take_seconds_are_not_waited_for(
    hook: Any, tmp_path: Path, ms: float, begins: int, steps: int
) -> None:
    assert _train([Rank(hook, tmp_path, 0, 1, ms=ms)], 3) == [(begins, steps, 0)]


def _bounds(hook: Any, folder: Path, *, step_mb: float, usual_ms: float = 10, profiled_ms: float = 11) -> list[Any]:
    """Of two ranks with three steps of their window; step_mb: what a step adds to rank 0's trace."""
    ranks = []
    for rank in (0, 1):
        control = hook.control.Control({"output": str(folder), "tool_version": "0"})
        diary = SimpleNamespace(times=[usual_ms * MS] * 4)
        window = SimpleNamespace(
            number=1,
            control=control,
            steps=SimpleNamespace(rank=rank, restart=0, diary=diary),
            size_bytes=lambda steps: steps * step_mb * 1e6,
            profiled_ns=[profiled_ms * MS] * 3,
        )
        ranks.append(hook.window.Bounds(window, 2))
    return ranks


@pytest.mark.parametrize(
    ("elapsed_s", "step_mb", "last"),
    [(3.0, 4, None), (3.0, 0, None), (21.0, 4, 7), (3.0, 36, 7)],
    ids=["small", "unknown", "long", "large"],
)
def test_rank_0_ends_a_window_for_all(
    hook: Any, tmp_path: Path, elapsed_s: float, step_mb: float, last: int | None
) -> None:
    ranks = _bounds(hook, tmp_path, step_mb=step_mb)
    over = [[count for each in ranks if each.over(count, elapsed_s)] for count in range(5, 9)]
    assert over == ([[], [], [], []] if last is None else [[], [], [7, 7], [8, 8]])
    assert (ranks[0].reason is None) == (last is None)
    assert ranks[0].reason == ranks[1].reason
    assert (tmp_path / ".stepscope" / "window-1-stop.json").exists() == (last is not None)
    if last is not None:
        assert json.loads((tmp_path / ".stepscope" / "window-1-stop.json").read_text())["last"] == last


@pytest.mark.parametrize(("profiled_ms", "sampled"), [(11, True), (29, True), (31, False)])
def test_what_costs_more_is_left_out_on_all_ranks_where_the_window_is_slow_already(
    hook: Any, tmp_path: Path, profiled_ms: float, sampled: bool
) -> None:
    ranks = _bounds(hook, tmp_path, step_mb=1, profiled_ms=profiled_ms)
    assert [each.over(5, 1.0) for each in ranks] == [False, False]
    assert [each.sampled for each in ranks] == [sampled, sampled]


def test_after_the_first_window_training_does_not_touch_the_folder(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [Rank(hook, tmp_path, rank, 2) for rank in range(2)]
    _train(ranks, 30)
    for each in ranks:
        each.began = None
        each.plans.next()

    def stalls(*_: object) -> bool:
        raise AssertionError("the folder stands still")

    with monkeypatch.context() as still:
        still.setattr(hook.plans.os, "access", stalls)
        assert _train(ranks, 30) == [None, None]
    ranks[0].steps.control.write("profile_window_request/1", "request-2.json", REQUEST)
    for _ in range(3):
        for each in ranks:
            each.plans.look()
        began = _train(ranks, 100)  # 10 ms each: a second
    assert began[0] == began[1]
    assert began[0][0] >= 60 + 250, "every rank has looked meanwhile"
