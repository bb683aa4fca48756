"""Which windows a running job is asked for by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diaries import write_diary

from stepscope.cli.monitor_run import _Deeper
from stepscope.launch.deep_look import AN_HOUR, HOUR_S, DeepLooks
from stepscope.records.finding import JobChange, JobVerdict, TimeCost, VerdictKind
from stepscope.records.nouns import Estimate
from stepscope.records.profile import HookedRank, ProfileRecord, WindowOfRank
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record


@pytest.fixture
def layout(tmp_path: Path) -> ProfileLayout:
    made = ProfileLayout(tmp_path)
    made.control.mkdir()
    write_record(made.record, ProfileRecord(command=("true",), folder="/", host="n0", first=None, argv=()))
    rank = {"host": "n0", "pid": 1, "restart": 0, "python": "3.11", "torch": "2.9", "local_rank": "0"}
    write_record(made.control / "rank-00000.json", HookedRank(rank=0, world_size=2, **rank))  # type: ignore[arg-type]
    return made


def verdict(kind: VerdictKind, *ranks: int, world: int = 2, period: int | None = None) -> JobVerdict:
    cost = TimeCost(kind=kind, share=Estimate(value=0.3), ranks=ranks, period=period)
    return JobVerdict(kind=kind, ranks=ranks, confidence="", headline="", costs=(cost,), world_size=world)


def slower(*ranks: int, ratio: float = 1.1) -> JobChange:
    return JobChange(step=600, unix_s=None, ratio=Estimate(value=ratio), ranks=ranks)


def ended(layout: ProfileLayout, number: int, *ranks: int) -> None:
    for rank in ranks:
        report: dict[str, Any] = {"world_size": 2, "host": "n0", "reason": None, "restart": 0}
        found = WindowOfRank(
            window=number, rank=rank, status="written", first_step=30, last_step=38, profiled_ns=(1,) * 8, **report
        )
        write_record(layout.control / f"window-{number}-rank-{rank:05d}.json", found)


@pytest.mark.parametrize(
    ("given", "mode", "ranks", "steps"),
    [
        (verdict("straggler", 1), "auto", None, "auto"),
        (verdict("straggler", 5, world=64), "auto", [0, 5], "auto"),
        (verdict("straggler", 0, world=65), "on", [0, 1], "auto"),
        (verdict("straggler", *range(8, 24), world=64), "auto", [0, *range(8, 15)], "auto"),
        (verdict("communication-bound", world=16), "auto", list(range(8)), "auto"),
        (verdict("input-bound", 0, 1, period=20), "auto", None, 22),
        (replace(verdict("compute-bound", world=16), change=slower(9)), "auto", [0, 9], "auto"),
    ],
)
def test_what_the_verdict_names_is_looked_into(
    layout: ProfileLayout, given: JobVerdict, mode: Any, ranks: list[int] | None, steps: object
) -> None:
    assert DeepLooks(layout, mode).consider(given) is not None
    asked = json.loads(layout.request(1).read_text())
    assert (asked["ranks"], asked["steps"], asked["wait"], asked["fixed_step"]) == (ranks, steps, "auto", None)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (verdict("straggler", 1), "off"),
        (verdict("straggler", 1, world=65), "auto"),
        (verdict("compute-bound"), "on"),
        (verdict("contended-machine"), "on"),
        (verdict("crash", 1), "on"),
        (verdict("periodic-pause", 0, period=200), "on"),
    ],
)
def test_nothing_is_asked_of_large_jobs_unasked_nor_where_a_window_says_nothing(
    layout: ProfileLayout, given: JobVerdict, mode: Any
) -> None:
    assert DeepLooks(layout, mode).consider(given) is None
    assert not layout.request(1).exists()


def test_a_verdict_is_looked_into_once_one_at_a_time_and_three_times_an_hour(layout: ProfileLayout) -> None:
    now = 0.0
    looks = DeepLooks(layout, "auto", lambda: now)
    for number, rank in enumerate(range(AN_HOUR), 1):
        assert looks.consider(verdict("straggler", rank, world=8)) is not None
        assert looks.look() is None
        assert looks.consider(verdict("input-bound", world=8)) is None, "one is under way"
        ended(layout, number, *range(2))
        found = looks.look()
        assert found is not None
        assert (found[0], found[1].steps, looks.look()) == (number, 8, None)
        assert looks.consider(verdict("straggler", rank, world=8)) is None, "it is known why"
    assert looks.consider(verdict("input-bound", world=8)) is None
    now = HOUR_S + 1
    assert looks.consider(verdict("input-bound", world=8)) is not None


@pytest.mark.parametrize("change", [slower(), slower(9, ratio=0.9), None], ids=["all", "faster", "none"])
def test_a_job_that_computes_is_not_looked_into_for_a_change_that_names_no_rank(
    layout: ProfileLayout, change: JobChange | None
) -> None:
    given = replace(verdict("compute-bound", world=16), change=change)
    assert DeepLooks(layout, "auto").consider(given) is None


@pytest.mark.parametrize(("left", "asked"), [(None, True), ({"kind": "exit"}, False)])
def test_a_job_whose_ranks_are_through_is_asked_for_nothing(
    layout: ProfileLayout, left: dict[str, str] | None, asked: bool
) -> None:
    write_diary(layout.root, {"forward": [5.0] * 30}, world_size=2, end=left)
    assert (DeepLooks(layout, "auto").consider(verdict("straggler", 1)) is not None) == asked


@pytest.mark.parametrize("came", [True, False])
def test_a_deep_look_that_was_announced_comes_or_the_end_says_why_not(
    layout: ProfileLayout, came: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    deeper = _Deeper(layout, "auto")
    deeper.end()
    deeper.consider(verdict("straggler", 1))
    assert capsys.readouterr().err.count("deep look") == 1
    if came:
        ended(layout, 1, 0, 1)
    deeper.end()
    assert ("stepscope profile" in capsys.readouterr().err) == (not came)
