"""Whom a rank waits for: how issued collectives are found again, and what bounds the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MS = 1_000_000


class Rig:
    """Groups of a rank without torch, whose diary writes into ``folder``."""

    def __init__(self, hook: Any, folder: Path) -> None:
        (folder / ".stepscope").mkdir()
        control = hook.control.Control({"output": str(folder), "tool_version": "0"})
        self.diary = SimpleNamespace(control=control, pages=SimpleNamespace(name="00000-0"), rank=0, on_device=False)
        self.groups = hook.groups.Groups(self.diary)
        self.hook, self.path = hook.groups, folder / ".stepscope" / "groups-00000-0.json"

    def waits(self, work: object, ns: int) -> None:
        self.groups.waited(id, (work,), ns)

    def written(self) -> dict[str, Any]:
        self.groups.write()
        return dict(json.loads(self.path.read_text()))


@pytest.fixture
def rig(hook: Any, tmp_path: Path) -> Rig:
    return Rig(hook, tmp_path)


class Process:
    group_name = "7"

    def allreduce(self, given: object) -> object:
        return given


def test_a_wait_is_for_the_group_that_issued_the_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    rig.hook.replace(Process, "allreduce", lambda original: rig.hook.issues(rig.groups, "all_reduce", original))
    first, second, unknown = object(), object(), object()
    group = Process()
    assert [group.allreduce(each) for each in (first, second)] == [first, second]
    for work, ms in ((second, 2), (first, 1), (unknown, 4)):
        rig.waits(work, ms * MS)
    rig.groups.step_ends(0)
    assert rig.groups.total == {("7", "all_reduce"): [3 * MS, 2], (None, "other"): [4 * MS, 1]}
    assert rig.groups.pending == {}


def test_steps_of_a_window_and_the_first_do_not_count(rig: Rig, hook: Any) -> None:
    for flags in (hook.record.FIRST, hook.record.PROFILED, 0):
        rig.waits(object(), MS)
        rig.groups.step_ends(flags)
    assert (rig.groups.steps, rig.groups.total) == (1, {(None, "other"): [MS, 1]})
    assert rig.written()["groups"] == [{"name": "", "ranks": [], "operations": {"other": [1, MS]}}]


def test_thousands_of_groups_and_of_works_that_nobody_waits_for_are_bounded(rig: Rig) -> None:
    for number in range(5_000):
        rig.groups.issued(number, (str(number), "all_reduce"))
        rig.groups.waited(int, (number,), 10)
        rig.groups.step_ends(0)
        rig.groups.issued(-number, ("0", "barrier"))
    assert len(rig.groups.pending) <= rig.hook.MOST_PENDING
    assert len(rig.groups.total) <= rig.hook.MOST_KEYS + 1
    assert sum(ns for ns, _ in rig.groups.total.values()) == 50_000


def test_on_a_device_the_host_does_not_wait(rig: Rig) -> None:
    rig.diary.on_device = True
    rig.waits(object(), MS)
    rig.groups.step_ends(0)
    assert rig.groups.total == {}


def test_a_key_that_cannot_be_read_ends_the_sums_alone(rig: Rig) -> None:
    rig.groups.waited(lambda work: work.missing, (object(),), MS)
    assert rig.groups.on is False
    rig.waits(object(), MS)
    assert rig.groups.step == {}


def test_a_fork_begins_with_nothing(rig: Rig) -> None:
    rig.waits(object(), MS)
    rig.groups.step_ends(0)
    rig.groups.begin_again()
    assert (rig.groups.total, rig.groups.steps, rig.groups.pending) == ({}, 0, {})


def test_the_operation_is_the_functional_collective_that_calls(rig: Rig) -> None:
    def reduce_scatter_tensor() -> str:
        return str(resolve())

    def resolve() -> str:
        return str(rig.hook.operation_of(sys._getframe(1)))

    assert reduce_scatter_tensor() == "reduce_scatter"
    assert rig.hook.operation_of(None) == "other"
