"""Which rank holds the others up, from stacks, steps and flight recorders made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.diaries import write_diary

from stepscope.launch import hang_watch
from stepscope.launch.hang_watch import HangWatch, explain
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.records.profile import Hang
from stepscope.results.ends.stacks import StackFrame, Standing, training_stack
from stepscope.results.profiled_job import stall_words
from stepscope.store.layout import ProfileLayout

STACK = """pid 7 at 2026-11-23T17:00:00.000Z

thread MainThread (140):
  File "/home/me/train.py", line 40, in <module>
    main()
    ~~~~^^
  File "/home/me/train.py", line 31, in load
    time.sleep(9)
  File "/usr/lib/python3.11/threading.py", line 20, in wait

thread loader (141):
  File "/home/me/data.py", line 3, in fetch
    read()
"""

LOAD = StackFrame(file="/home/me/train.py", line=31, name="load")
USER = Standing(frames=(LOAD,))
WAITS = Standing(frames=(StackFrame(file="/x/site-packages/torch/distributed/c10d.py", line=2, name="wait"), LOAD))


def test_the_stack_of_the_main_thread_is_read_from_its_innermost_call_on() -> None:
    found = training_stack(STACK).frames
    assert [(f.line, f.name, f.code, f.own) for f in found] == [
        (20, "wait", "", False),
        (31, "load", "time.sleep(9)", True),
        (40, "<module>", "main()", True),
    ]
    assert next(f.place for f in found if f.own) == "/home/me/train.py:31 in load: time.sleep(9)"
    assert training_stack("") == Standing()


def dump(rank: int, calls: int, *, done: int) -> FlightDump:
    entries = tuple(
        FlightEntry(
            record_id=at, group="0", sequence=at + 1, op="all_reduce", name="gloo:all_reduce", input_sizes=((8,),),
            input_dtypes=("float32",), state="completed" if at < done else "scheduled", is_p2p=False,
        )
        for at in range(calls)
    )  # fmt: skip
    group = FlightGroup(name="0", description="default_pg", ranks=(0, 1))
    return FlightDump(rank=rank, entries=entries, groups=(group,), kept="all", version="2.9", source="")


def explained(**more: Any) -> Any:
    given = {"steps": {0: 3, 1: 3}, "dumps": (), "stacks": {}, "world_size": 2, "silent_s": 63.0, "hosts": {1: "n1"}}
    return explain(**{**given, **more})


@pytest.mark.parametrize(
    ("more", "ranks", "waiting"),
    [
        ({"dumps": (dump(0, 5, done=4), dump(1, 4, done=4))}, (1,), (0,)),
        ({"dumps": (dump(0, 5, done=4), dump(1, 4, done=4)), "stacks": {0: USER, 1: WAITS}}, (1,), (0,)),
        ({"steps": {0: 4, 1: 3}}, (1,), (0,)),
        ({"stacks": {0: WAITS, 1: USER}}, (1,), (0,)),
        ({"stacks": {0: WAITS}}, (1,), (0,)),  # no answer
        ({"stacks": {0: WAITS, 1: WAITS}}, (), ()),
        ({"stacks": {0: USER, 1: USER}}, (), ()),
        ({"stacks": {}}, (), ()),
        ({"steps": {0: 3}, "stacks": {0: USER}, "world_size": 1}, (0,), ()),
    ],
)
def test_the_rank_that_holds_the_others_up(
    more: dict[str, Any], ranks: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    found = explained(**more)
    assert (found.ranks, found.waiting, found.step) == (ranks, waiting, 4)


def test_where_it_is_and_what_it_has_not_called_are_told() -> None:
    loads = Standing(part="data", frames=(LOAD,))
    found = explained(dumps=(dump(0, 5, done=4), dump(1, 4, done=4)), stacks={0: WAITS, 1: loads})
    assert found.parts == ((0, "all_reduce"), (1, "data"))
    assert (
        stall_words(found)
        == "no step for 63 s: rank 1 is in data loading at /home/me/train.py:31, rank 0 waits in all_reduce"
    )
    assert found.place == "/home/me/train.py:31 in load"
    assert found.host == "n1"
    assert "rank 1" in found.said
    assert "all_reduce" in found.said


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(hang_watch, "time", made)
    return made


def answer(layout: ProfileLayout, *ranks: int) -> None:
    for rank in ranks:
        (layout.control / f"stack-{rank:05d}-0.txt").write_text(STACK)
        (layout.control / f"flight-{rank:05d}-0.json").write_text("{}")


def looks(watch: HangWatch, clock: Clock, seconds: float) -> list[tuple[str, Hang]]:
    found = []
    for _ in range(int(seconds)):
        clock.now += 1
        if (hang := watch.look()) is not None:
            found.append(hang)
    return found


def test_ranks_are_asked_once_for_each_standstill(tmp_path: Path, clock: Clock) -> None:
    layout = ProfileLayout(tmp_path)
    paths = [write_diary(tmp_path, {"forward": [10.0] * 3}, rank=rank, world_size=2) for rank in (0, 1)]
    watch = HangWatch(layout, 3)
    assert looks(watch, clock, 3) == []
    assert not layout.stack_request.exists()
    assert looks(watch, clock, 2) == []
    assert layout.stack_request.exists()
    answer(layout, 0, 1)
    ((stage, hang),) = looks(watch, clock, 30)
    assert (stage, hang.step, watch.hang is not None) == ("hang", 4, True)
    assert watch.hang.silent_s > 30, "it goes on"
    with paths[0].open("ab") as file:
        file.write(bytes(40))
    assert looks(watch, clock, 2) == []
    assert watch.hang is None, "a step was made"
    assert len(looks(watch, clock, 60)) == 1, "without an answer, too"
    with paths[0].open("ab") as file:
        file.write(bytes(40))
    assert looks(watch, clock, 60) == [], "twice is enough"


@pytest.mark.parametrize(
    ("step_ms", "after_s", "silent_s", "stages"),
    [(10.0, None, 14, []), (10.0, None, 25, ["stall"]), (10.0, None, 58, ["stall"]), (10.0, None, 75, ["stall", "hang"]),
     (5000.0, None, 49, []), (5000.0, None, 62, ["stall"]), (5000.0, None, 115, ["stall", "hang"]),
     (5000.0, 8.0, 20, ["hang"])],
)  # fmt: skip
def test_the_limits_are_seconds_steps_or_what_is_stated(
    tmp_path: Path, clock: Clock, step_ms: float, after_s: float | None, silent_s: float, stages: list[str]
) -> None:
    write_diary(tmp_path, {"forward": [step_ms] * 3})
    assert [stage for stage, _ in looks(HangWatch(ProfileLayout(tmp_path), after_s), clock, silent_s)] == stages


SAVES = """pid 7 at 2026-11-23T17:00:00.000Z in checkpoint after 3 steps

thread MainThread (140):
  File "/home/me/train.py", line 40, in <module>
    torch.save(model.state_dict(), path)
"""


def test_a_stall_in_a_checkpoint_is_not_told_and_one_after_it_is(tmp_path: Path, clock: Clock) -> None:
    layout = ProfileLayout(tmp_path)
    write_diary(tmp_path, {"forward": [10.0] * 3})
    watch = HangWatch(layout, None)
    assert looks(watch, clock, 18) == []
    assert layout.stack_request.exists()
    (layout.control / "stack-00000-0.txt").write_text(SAVES)
    assert looks(watch, clock, 8) == [], "it saves"
    assert json.loads(layout.stack_request.read_text())["number"] == 1
    while watch.hang is None and json.loads(layout.stack_request.read_text())["number"] == 1:
        assert looks(watch, clock, 1) == []
    assert 30 < clock.now - 1000 < 50, "it is asked again once as much time has passed"
    assert json.loads(layout.stack_request.read_text())["number"] == 2
    (layout.control / "stack-00000-0.txt").write_text(STACK)
    ((stage, stall),) = looks(watch, clock, 9)
    assert (stage, stall.ranks, stall.place) == ("stall", (0,), "/home/me/train.py:31 in load: time.sleep(9)")
    assert watch.hang is None, "not yet"
    assert watch.stall is not None
    assert [stage for stage, _ in looks(watch, clock, 40)] == ["hang"]


def test_what_took_as_long_before_is_no_stall(tmp_path: Path, clock: Clock) -> None:
    """A job that plays games between its steps; what is known to be no part of a step does not count."""
    for folder, column, stages in (("a", "before", []), ("b", "outside", ["stall"])):
        columns = {"forward": [10.0] * 30, column: [0.0] * 15 + [20_000.0] + [0.0] * 14}
        write_diary(tmp_path / folder, columns)
        watch = HangWatch(ProfileLayout(tmp_path / folder), None)
        assert [stage for stage, _ in looks(watch, clock, 25)] == stages


def test_of_a_job_in_its_first_steps_no_stall_is_told(tmp_path: Path, clock: Clock) -> None:
    write_diary(tmp_path, {"forward": [10.0] * 2})
    assert looks(HangWatch(ProfileLayout(tmp_path), None), clock, 55) == []


def test_a_stall_that_goes_on_and_off_is_told_a_few_times(tmp_path: Path, clock: Clock) -> None:
    path = write_diary(tmp_path, {"forward": [10.0] * 3})
    watch = HangWatch(ProfileLayout(tmp_path), None)
    told = 0
    for _ in range(9):
        told += len(looks(watch, clock, 30))
        with path.open("ab") as file:
            file.write(bytes(40))
    assert told == hang_watch.MOST_STALLS


def test_a_job_that_loads_or_writes_a_window_or_ends_is_left_alone(tmp_path: Path, clock: Clock) -> None:
    layout = ProfileLayout(tmp_path)
    layout.control.mkdir()
    watch = HangWatch(layout, 3)
    looks(watch, clock, 25)
    assert not layout.stack_request.exists(), "before the first step, ten times as long"
    write_diary(tmp_path, {"forward": [1.0]}, world_size=2)
    layout.traces(1).mkdir()
    for size in range(8):
        looks(watch, clock, 2)
        (layout.traces(1) / ".rank-00000.json").write_bytes(bytes(size))
    assert not layout.stack_request.exists(), "the trace grows"
    (layout.control / "end-00000-0.json").write_text(json.dumps({"kind": "exit"}))
    looks(watch, clock, 60)
    assert not layout.stack_request.exists(), "rank 0 is through"
    os.replace(layout.control / "end-00000-0.json", layout.control / "gone")  # noqa: PTH105
    looks(watch, clock, 2)
    assert layout.stack_request.exists()
