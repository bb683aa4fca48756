"""What outlives a process that ends without a word, written by the hook and read from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.launch.black_boxes import open_box, read_box
from stepscope.launch.hooked_job import HOOK

SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(HOOK)!r})
from stepscope_hook.black_box import BlackBox
box = BlackBox()
for number in range(1, 40):
    box.step(number)
box.look("data")
def fetch():
    print(box.number, flush=True)
    time.sleep(1000)
fetch()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def box_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    found = open_box(process.pid, int(process.stdout.readline()))
    assert found is not None
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_steps_and_part_outlive_any_end_and_the_stack_one_by_sigterm(
    job: subprocess.Popen[str], number: signal.Signals
) -> None:
    box = box_of(job)
    job.send_signal(number)
    assert job.wait() == -number, "the job ends as without it"
    left = read_box(box)
    os.close(box)
    assert left is not None
    assert (left.steps, left.standing.part) == (39, "data")
    assert abs(left.seen_ns - time.time_ns()) < 600e9
    names = [frame.name for frame in left.standing.frames]
    assert names == (["fetch", "<module>"] if number == signal.SIGTERM else [])
    if names:
        assert left.standing.place is not None
        assert "train.py:1" in left.standing.place
        assert "in fetch: " in left.standing.place


def test_another_file_of_that_number_is_no_black_box(job: subprocess.Popen[str]) -> None:
    os.close(box_of(job))
    assert open_box(job.pid, 0) is None
    assert open_box(job.pid, 900) is None


def test_a_fork_has_none(hook: Any) -> None:
    box = hook.black_box.BlackBox()
    box.step(3)
    number = box.number
    found = open_box(os.getpid(), number)
    assert found is not None
    box.forget()
    box.step(4)
    box.look("data")
    left = read_box(found)
    assert left is not None
    assert (left.steps, left.standing.part, box.number) == (3, None, None)
    os.close(found)
    os.close(number)


def test_the_part_of_a_step_is_left_as_the_recorder_sees_it(hook: Any, tmp_path: Path) -> None:
    control = hook.control.Control({"output": str(tmp_path), "tool_version": "0"})
    diary = hook.diary.Diary(control, hook.pages.Pages(control))
    seen = []
    diary.box = SimpleNamespace(look=seen.append)
    for phase, compiling, saving in ((None, 0, 0), (hook.record.DATA, 0, 0), (hook.record.FORWARD, 1, 0), (None, 0, 1)):
        diary.phase, diary.compiling, diary.saving = phase, compiling, saving
        diary.look_at_part()
    assert seen == ["", "data", "compilation", "checkpoint"]
    assert hook.ends.stacks_of_all(diary).splitlines()[0].endswith(b" in checkpoint after 0 steps")
