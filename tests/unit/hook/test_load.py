"""Who used the processors, as the hook samples it: numbers of this process against what it does."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.hook.test_hardware import Rig, hurry

from stepscope.store.hardware import read_hardware


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def load(hook: Any, **known: Any) -> Any:
    return hook.load.Load(SimpleNamespace(data_used=[0, 0]), **known)


def read(of: Any) -> dict[str, float]:
    return dict(zip(of.columns, of.read(), strict=True))


def test_cpu_time_of_this_process_is_its_own(hook: Any) -> None:
    of = load(hook)
    spin(0.2)
    found = read(of)
    assert found["process_s"] >= 0.2
    assert found["busy_s"] >= 0.15  # counted in hundredths, of each processor
    assert found["workers_s"] == 0
    assert math.isnan(found["stepscope_s"])
    assert read(of)["process_s"] < 0.2, "each sample is of the time since the one before"


def test_worker_processes_are_counted_apart(hook: Any) -> None:
    of = load(hook)
    worker = multiprocessing.get_context("fork").Process(target=spin, args=(0.3,))
    worker.start()
    seconds = 0.0
    while worker.exitcode is None:
        seconds += read(of)["workers_s"]
        time.sleep(0.01)
    assert 0.2 <= seconds <= 0.5


def test_workers_that_end_between_two_samples_are_the_jobs_own(hook: Any) -> None:
    """Those of an epoch may live for less than a second; what they used is nobody else's."""
    of = load(hook)
    for _ in range(2):
        worker = multiprocessing.get_context("fork").Process(target=spin, args=(0.2,))
        worker.start()
        worker.join()
    assert 0.35 <= read(of)["workers_s"] <= 0.7
    assert read(of)["workers_s"] == 0


def test_the_command_of_another_host_is_not_looked_for(hook: Any) -> None:
    here = load(hook, command=(socket.gethostname(), os.getpid()))
    spin(0.05)
    assert read(here)["stepscope_s"] >= 0.03
    assert math.isnan(read(load(hook, command=("elsewhere", os.getpid())))["stepscope_s"])
    assert math.isnan(read(load(hook, command=(socket.gethostname(), 2**22 + 5)))["stepscope_s"])


def test_a_system_that_does_not_say_leaves_it_unknown(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.load, "read", lambda *_: b"")
    found = read(load(hook))
    assert math.isnan(found["busy_s"])
    assert found["process_s"] >= 0


def test_waits_for_data_are_those_of_the_diary(hook: Any) -> None:
    diary = SimpleNamespace(data_used=[1_000_000_000, 400_000_000])
    of = hook.load.Load(diary)
    diary.data_used[:] = [3_000_000_000, 500_000_000]
    found = read(of)
    assert (found["data_s"], found["data_cpu_s"]) == (pytest.approx(2.0), pytest.approx(0.1))


def test_a_job_that_ends_between_two_samples_leaves_a_second_one(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(hook, monkeypatch, loads=True)
    monkeypatch.setattr(hook.hardware, "EVERY_S", 60.0)
    rig = Rig(hook, tmp_path, devices=(), world=1)
    path = rig.folder / "load-00003-0.bin"
    rig.sampler.look()
    rig.wait(lambda: (found := read_hardware(path)) is not None and found.unix_s.size)
    rig.diary.number = 19
    rig.sampler.close()
    found = read_hardware(path)
    assert found is not None
    assert found.step.tolist() == [7, 19]
    assert found.header.load[0].cpus == tuple(sorted(os.sched_getaffinity(0)))
