"""A loop that marks its steps and their parts itself: the marks are the diary's parts, and never end the job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.hook.test_diary import MS, Rig, _ms

from stepscope.monitor import StepMonitor
from stepscope.monitor.stragglers import StragglerDetector


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Any) -> Rig:
    return Rig(tmp_path, monkeypatch, hook)


def test_marked_parts_are_the_columns_and_what_is_marked_inside_of_them_counts_once(rig: Rig, hook: Any) -> None:
    def part(name: str, ms: float, *inside: Any) -> None:
        mark = hook.own_loop.Mark(rig.diary, name)
        mark.enter()
        rig.clock.passes(ms)
        for each in inside:
            each()
        mark.leave()

    for _ in range(2):
        part("data", 2)
        part("forward", 3, lambda: part("comm", 5))
        part("backward", 4, lambda: rig.backward(1))
        rig.clock.passes(0.5)
        part("optimizer", 1, lambda: rig.optimize(2, counts=False))
        part("evaluation", 20, lambda: rig.forward(7, training=False))
        rig.diary.boundary()
    diary = rig.read()
    found = _ms(diary, 1)
    assert {name: found[name] for name in ("whole", "data", "forward", "backward", "optimizer", "outside")} == {
        "whole": 45.5, "data": 2, "forward": 3, "backward": 5, "optimizer": 3, "outside": 27,
    }  # fmt: skip
    assert [(event.kind, event.step, event.ns) for event in diary.events] == [
        ("evaluation", 1, 27 * MS), ("evaluation", 2, 27 * MS),
    ]  # fmt: skip
    assert rig.diary.own_ns == pytest.approx(2 * 13.5 * MS)


def test_steps_are_those_of_the_loop_and_none_once_it_has_stopped(
    rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = hook.steps.Steps(rig.diary.control)
    steps.diary, steps.pages, steps.own = rig.diary, rig.pages, True
    monkeypatch.setattr(steps, "register", lambda _: None)
    monkeypatch.setattr(hook.steps, "current", steps)
    steps.plans.on = False
    monitor = StepMonitor(tmp_path / "elsewhere").start()
    assert monitor.on
    assert monitor.folder == tmp_path
    sys.modules["torch"].get_num_threads = lambda: 1  # type: ignore[attr-defined]
    for _ in range(3):
        with monitor.phase("forward"):
            rig.clock.passes(3)
        steps(Optimizer())
        monitor.step()
    monitor.stop()
    monitor.step()
    assert rig.read().steps == 3


class Optimizer:
    """Of which a weak reference can be kept."""


def test_a_rank_is_told_once_it_is_slow_twice_and_a_callback_that_raises_ends_nothing(capsys: Any) -> None:
    told: list[tuple[int, float]] = []
    detector = StragglerDetector(StepMonitor("unused"), lambda rank, excess: told.append((rank, round(excess, 3))))
    for own in ([10.0, 10.5, 0.0], [10.0, 12.0, 10.0], [10.0, 10.0, 10.0], [10.0, 12.0, 10.0], [10.0, 12.5, 10.0]):
        detector._judge(own)
    assert told == [(1, 0.25)]
    lonely = StragglerDetector(StepMonitor("unused"), lambda *_: None, every=1)
    lonely.step()
    lonely.step()
    assert capsys.readouterr().err.count("slow ranks are not looked for") == 1


def test_a_monitor_that_cannot_begin_lets_the_job_go_on(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    with StepMonitor(tmp_path / "file" / "folder") as monitor:
        with monitor.phase("forward"):
            pass
        monitor.step()
        assert not monitor.on
    assert monitor.summary() == {}
    assert "no step diary" in capsys.readouterr().err


def test_trainings_after_one_another_are_one_job_and_another_folder_is_another(
    rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = hook.steps.Steps(rig.diary.control)
    steps.diary, steps.pages, steps.monitored = rig.diary, rig.pages, True
    monkeypatch.setattr(steps, "register", lambda _: None)
    monkeypatch.setattr(hook.steps, "current", steps)
    steps.plans.on = False
    sys.modules["torch"].get_num_threads = lambda: 1  # type: ignore[attr-defined]
    first, second = Optimizer(), Optimizer()
    monitor = StepMonitor(tmp_path, by_optimizer=True)
    for optimizer in (first, second):
        monitor.start()
        for _ in range(3):
            rig.clock.passes(3)
            steps(optimizer)
    monitor.flush()
    assert rig.read().steps == 6
    monkeypatch.setattr(StepMonitor, "_begin", lambda _: None)
    StepMonitor(tmp_path / "elsewhere").start()
    assert steps.ended
