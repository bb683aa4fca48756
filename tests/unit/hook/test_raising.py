"""What raises inside of the hook ends what it records: the job's own code goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.hook.test_diary import Rig


class Optimizer:
    """Of which a weak reference can be kept."""


def fails(*_: object) -> None:
    raise RuntimeError("another torch")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Any) -> Rig:
    return Rig(tmp_path, monkeypatch, hook)


@pytest.fixture
def steps(rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a process whose rank is not known yet."""
    found = hook.steps.Steps(rig.diary.control)
    found.diary, found.pages, found.looks.diary = rig.diary, rig.pages, rig.diary
    monkeypatch.setattr(found, "register", lambda _=None: None)
    sys.modules["torch"].get_num_threads = lambda: 1  # type: ignore[attr-defined]
    return found


def test_the_end_of_a_step_that_raises_is_the_last_one_that_counts(
    rig: Rig, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = Optimizer()
    steps(optimizer)
    monkeypatch.setattr(steps, "profiling", fails)
    for _ in range(3):
        steps(optimizer)
    diary = rig.read()
    assert (diary.steps, [event.kind for event in diary.events]) == (1, ["off"])
    assert steps.optimizer == 0


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_rank_that_cannot_be_told_is_not_recorded(
    rig: Rig, steps: Any, monkeypatch: pytest.MonkeyPatch, own_loop: bool
) -> None:
    monkeypatch.setattr(steps, "register", fails)
    for _ in range(3):
        if own_loop:
            steps.own_step()
        else:
            steps(Optimizer())
    assert (steps.optimizer, steps.count, rig.diary.on) == (0, 0, False)
    assert "another torch" in rig.diary.why_off


def test_a_forward_pass_that_counts_as_a_step_goes_on(steps: Any, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "register", fails)
    forwards = hook.modules.Forwards(steps)
    removed: list[int] = []
    forwards.handles = [SimpleNamespace(remove=lambda: removed.append(1))]
    forwards.step()
    assert (steps.optimizer, removed) == (0, [1])


def test_a_module_that_cannot_say_what_it_has_is_left_out_with_a_note(
    rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            raise RuntimeError("cannot import")

    def save_file() -> str:
        return "saved"

    monkeypatch.setitem(sys.modules, "accelerate.accelerator", Lazy("accelerate.accelerator"))
    other = ModuleType("safetensors.torch")
    other.save_file = save_file  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "safetensors.torch", other)
    looks = hook.looks.Looks(rig.diary)
    for _ in range(2):
        looks.modules = 0
        looks.later()
    assert asked == ["Accelerator"]
    assert other.save_file is not save_file
    assert other.save_file() == "saved"
    rig.step()
    assert [event.kind for event in rig.read().events] == ["off"]


def test_an_event_that_cannot_be_recorded_leaves_the_backward_pass_alone(rig: Rig, hook: Any) -> None:
    tail = object.__new__(hook.gradients.LastGradientOnDevice)
    tail.diary, tail.cuda, tail.event, tail.failed = (
        rig.diary,
        SimpleNamespace(is_current_stream_capturing=fails),
        None,
        False,
    )
    for _ in range(2):
        tail.ready(object())
    assert (tail.last, tail.failed) == (None, True)
    rig.step()
    assert [event.kind for event in rig.read().events] == ["off"]


WORKER = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 31, in __getitem__
    raise KeyError("no such row")
KeyError: 'no such row'
"""


def test_what_a_loaders_worker_raised_is_told_with_its_own_line(hook: Any) -> None:
    assert hook.ends.of_worker(WORKER) == (
        "Caught KeyError in DataLoader worker process 0: KeyError: 'no such row'",
        '/home/me/data.py:31 in __getitem__: raise KeyError("no such row")',
    )
    assert hook.ends.of_worker("DataLoader worker (pid 7) is killed by signal: Killed.") is None
    assert hook.ends.of_worker("") is None
    found = hook.ends.described(RuntimeError(WORKER))
    assert (found["exception"], found["place"][:21]) == ("RuntimeError", "/home/me/data.py:31 i")
