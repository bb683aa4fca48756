"""Reading in several processes: the same answer, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stalled_import import stalled_module, wait_until
from tests.trace_builder import build, write_job

from stepscope.core.errors import DataError
from stepscope.core.pool import side_by_side
from stepscope.traces import job
from stepscope.traces.sections import Wanted


def test_several_processes_give_the_same_answer_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_job(build(world=4, steps=3, late={1: 300_000}), tmp_path)
    alone = job.analyse_job(folder, Wanted(processes=1))
    monkeypatch.setattr(job, "PARALLEL_FROM_BYTES", 0)
    finished: list[Path] = []
    together = job.analyse_job(folder, Wanted(processes=2), listener=job.ReadingListener(done=finished.append))
    assert together == alone
    assert sorted(finished) == sorted(folder.iterdir())


def test_an_error_in_a_process_is_the_caller_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_job(build(world=2), tmp_path)
    broken = folder / "rank-1.json"
    broken.write_text(broken.read_text().replace('"ts": ', '"ts": ?', 1))
    monkeypatch.setattr(job, "PARALLEL_FROM_BYTES", 0)
    with pytest.raises(DataError, match=r"rank-1\.json: not valid JSON near byte") as caught:
        job.analyse_job(folder, Wanted(processes=2))
    assert caught.value.fix


def test_an_interrupt_ends_the_processes_at_once() -> None:
    task_s = 60
    before = set(multiprocessing.active_children())
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted_while_running(task_s)
    assert time.monotonic() - started < task_s
    assert set(multiprocessing.active_children()) <= before


def interrupted_while_running(task_s: float) -> None:
    with side_by_side(2) as pool:
        running = pool.submit(time.sleep, task_s)
        while not running.running():
            time.sleep(0.02)
        raise KeyboardInterrupt


def test_processes_are_not_the_caller() -> None:
    with side_by_side(1) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()


def test_ctrl_c_while_modules_are_made_ready_is_answered_once(tmp_path: Path) -> None:
    begun = stalled_module(tmp_path, "slow_to_import", seconds=1)
    script = (
        "import sys, time\n"
        "from stepscope.core.pool import get_ready\n"
        "get_ready(['slow_to_import'])\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    wait_until(begun.exists, "the server never began to import")
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[1] == "interrupted\n"
