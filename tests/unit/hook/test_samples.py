"""Samples of memory beside the diary: when one is taken, what it holds, and what ends them."""

from __future__ import annotations

import errno
import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.launch.hooked_job import HOOK
from stepscope.records.profile import SAMPLE
from stepscope.store.diary import SAMPLE_DTYPE

GIB = 2**30
FREES = """
import ctypes
from stepscope_hook.samples import give_back_memory, resident
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
held = [c.malloc(1 << 14) for _ in range(1 << 12)]
for each in held:
    ctypes.memset(each, 1, 1 << 14)
for each in held[:-1]:  # the last keeps the top of the heap where it is
    c.free(each)
before = resident()[0]
give_back_memory()
print(before - resident()[0])
"""


class Rig:
    """A process that has stepped, and a clock that the test moves."""

    def __init__(self, hook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.notes: list[str] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(hook.samples, "time", clock)
        (folder / ".stepscope").mkdir()
        self.control = hook.control.Control({"output": str(folder), "tool_version": "0"})
        self.diary = SimpleNamespace(
            pages=SimpleNamespace(name=None),
            number=7,
            control=self.control,
            note=self.notes.append,
            unix_s=lambda: 1e9 + self.now,
        )
        self.samples = hook.samples.Samples(self.diary)
        self.file = folder / ".stepscope" / "samples-00003-1.bin"

    def look(self, seconds: float, every: float = 0.5) -> None:
        for _ in range(round(seconds / every)):
            self.samples.look()
            self.now += every

    def read(self) -> Any:
        return np.frombuffer(self.file.read_bytes(), SAMPLE_DTYPE)


@pytest.fixture
def rig(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(hook, tmp_path, monkeypatch)


def test_the_format_is_that_of_the_reader(hook: Any) -> None:
    assert hook.samples.SAMPLE.format == SAMPLE


def test_one_a_second_for_an_hour_then_one_every_ten_once_the_diary_is_open(rig: Rig) -> None:
    rig.look(5)
    assert not rig.file.exists(), "the rank is not known before the first step"
    rig.diary.pages.name = "00003-1"
    rig.look(5)
    assert rig.read()["unix_s"].tolist() == [1e9 + 105 + second for second in range(5)]
    rig.now = 105 + 3600.0
    rig.look(100)
    assert len(rig.read()) == 5 + 10


def test_what_a_sample_holds(rig: Rig) -> None:
    rig.diary.pages.name = "00003-1"
    rig.look(1)
    (sample,) = rig.read()
    assert sample["step"] == 7
    resident, shared = (
        int(each) * os.sysconf("SC_PAGE_SIZE") for each in Path("/proc/self/statm").read_text().split()[1:3]
    )
    assert sample["resident"] == pytest.approx(resident, rel=0.05)
    assert sample["shared"] == pytest.approx(shared, rel=0.05)
    assert 0 < sample["available"] < 2**50
    assert all(math.isnan(sample[name]) for name in ("allocated", "reserved", "device")), "there is no device"


def test_devices_of_the_parameters_are_asked_once_cuda_is_there(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [False]
    kept = {1: (3 * GIB, 4 * GIB), 2: (1 * GIB, 2 * GIB)}
    cuda = SimpleNamespace(
        is_initialized=lambda: begun[0],
        memory_stats=lambda at: {
            f"{k}_bytes.all.current": v for k, v in zip(("allocated", "reserved"), kept[at], strict=True)
        },
        get_device_properties=lambda _: SimpleNamespace(total_memory=80 * GIB),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    rig.diary.pages.name, rig.samples.devices = "00003-1", [1, 2]
    rig.look(1)
    begun[0] = True
    rig.look(1)
    before, after = rig.read()
    assert math.isnan(before["allocated"])
    assert [after[name] / GIB for name in ("allocated", "reserved", "device")] == [4, 6, 160]


def test_a_control_group_leaves_less_than_the_host(
    hook: Any, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "groups" / "job"
    group.mkdir(parents=True)
    for name, text in (
        ("memory.max", "4096000\n"),
        ("memory.current", "4000000\n"),
        ("memory.stat", "anon 1\ninactive_file 20480\n"),
    ):
        (group / name).write_text(text)
    ((mark, _, *rest), _) = hook.samples.CGROUPS
    monkeypatch.setattr(hook.samples, "CGROUPS", ((mark, str(tmp_path / "groups"), *rest),))
    whole = hook.samples.read
    monkeypatch.setattr(
        hook.samples,
        "read",
        lambda path, most=256: b"0::/job/rank\n" if path.endswith("/cgroup") else whole(path, most),
    )
    assert rig.samples.available() == 4096000 - 4000000 + 20480


@pytest.mark.parametrize("fails", ["full", "cut", "no folder"])
def test_what_cannot_be_written_ends_the_samples_with_a_note(
    hook: Any, rig: Rig, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    rig.diary.pages.name = "00003-1"

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fails == "no folder":
        (rig.file.parent).rmdir()
    else:
        monkeypatch.setattr(hook.samples.os, "write", full if fails == "full" else lambda *_: 3)
    rig.look(5)
    monkeypatch.undo()
    assert len(rig.notes) == 1
    assert rig.notes[0].startswith("memory: ")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim(3) is of the GNU C library")
def test_what_was_freed_goes_back_to_the_system() -> None:
    environment = {**os.environ, "PYTHONPATH": str(HOOK), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", FREES], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 48 << 20  # of 64 MiB
