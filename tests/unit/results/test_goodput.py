"""Goodput on diaries made by hand: each planted part is found, and all parts add up to the wall time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diaries import MS, START_UNIX_NS, job, write_diary, write_record

from stepscope.core.errors import Unavailable
from stepscope.records.profile import FIRST, PROFILED
from stepscope.report.documents import diagnose_figures
from stepscope.report.views.goodput import build
from stepscope.results.evidence import Evidence
from stepscope.results.goodput import Goodput, goodput

STEPS = 40
SET_UP_MS, GAP_MS, END_MS = 3000.0, 5000.0, 400.0


def planted(root: Path, *, worlds: tuple[int, ...] = (2, 1)) -> Goodput:
    """Two attempts of 40 steps of 20 ms. The first: warm-up 500 ms, an evaluation of 300 ms that rank 1 waits for, a
    checkpoint of 200 ms after step 30, a data stall of 400 ms, a profiled step of 50 ms. Then 5 s, with fewer ranks."""
    began = START_UNIX_NS
    for attempt, world in enumerate(worlds):
        first = attempt == 0
        forward = [520.0] + [20.0] * (STEPS - 1)
        data = [0.0] * STEPS
        flags = [FIRST] + [0] * (STEPS - 1)
        extra = [0.0] * STEPS
        if first:
            data[35], forward[34], flags[34] = 400.0, 50.0, PROFILED
            extra[20], extra[30] = 300.0, 200.0
        wall = sum(forward) + sum(data) + sum(extra)
        events = [
            {"kind": "evaluation", "step": 21, "at_ns": 0, "ns": int(300 * MS)},
            {"kind": "checkpoint", "step": 31, "at_ns": 0, "ns": int(200 * MS)},
        ]
        for rank in range(world):
            end = {"at_unix_ns": int(began + (wall + END_MS) * MS)} if not first else None
            held = {"outside": extra} if rank == 0 else {"comm": extra}
            write_diary(
                root, {"forward": forward, "data": data, **held}, rank=rank, world_size=world, attempt=attempt, flags=flags,
                events=events if first and rank == 0 else (), restart=attempt, start_unix_ns=int(began),
                set_up_ns=int(SET_UP_MS * MS), end=end,
            )  # fmt: skip
        began += (wall + GAP_MS) * MS
    found = goodput(job(write_record(root)))
    assert isinstance(found, Goodput)
    return found


@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), (1, 1)])
def test_each_planted_part_is_found(tmp_path: Path, worlds: tuple[int, ...]) -> None:
    found = planted(tmp_path, worlds=worlds)
    ms = {part: round(ns / MS, 3) for part, ns in found.parts_ns.items() if ns}
    assert ms == pytest.approx(
        {
            "productive": 70 * 20, "repeated": 10 * 20, "start_up": SET_UP_MS, "warm_up": 1000, "evaluation": 300,
            "checkpoint": 200, "data_stall": 400, "profiler": 30, "restart": GAP_MS, "end": END_MS,
        }, abs=0.1
    )  # fmt: skip
    assert (found.worlds, found.steps, found.repeated_steps, found.restarts) == (worlds, 80, 10, 1)
    assert sum(found.share(part) for part in found.parts_ns) == pytest.approx(1.0)


def test_table_and_conditions_have_the_same_figures(tmp_path: Path) -> None:
    found = planted(tmp_path)
    (table,) = (build((job(tmp_path),)),)
    assert len(table.rows) == sum(ns > 0 for ns in found.parts_ns.values())
    evidence = Evidence(sources=(), profiled=(job(tmp_path),))
    from stepscope.diagnose.engine import diagnose

    figures = diagnose_figures(evidence, diagnose(evidence))
    assert figures["goodput_fraction"] == pytest.approx(found.share("productive"))
    assert figures["restart_fraction"] == pytest.approx(found.share("restart"))


def test_without_a_checkpoint_a_restart_loses_every_step(tmp_path: Path) -> None:
    for attempt in range(2):
        start = START_UNIX_NS + attempt * int(1e9)
        write_diary(tmp_path, {"forward": [10.0] * 20}, attempt=attempt, restart=attempt, start_unix_ns=start)
    found = goodput(job(write_record(tmp_path)))
    assert isinstance(found, Goodput)
    assert found.repeated_steps == 20
    assert not found.saved
    assert found.parts_ns["repeated"] / MS == pytest.approx(200)


def test_trainings_one_after_the_other_lose_nothing(tmp_path: Path) -> None:
    for attempt in range(2):
        start = START_UNIX_NS + attempt * int(1e9)
        at_exit = start + int(250 * MS)
        write_diary(
            tmp_path, {"forward": [10.0] * (20 + attempt)}, attempt=attempt, start_unix_ns=start, set_up_ns=0,
            end={"at_unix_ns": at_exit},
        )  # fmt: skip
    known = job(write_record(tmp_path))
    found = goodput(known)
    assert isinstance(found, Goodput)
    assert (found.trainings, found.restarts, found.repeated_steps, found.steps) == (2, 0, 0, 41)
    ms = {part: round(ns / MS, 3) for part, ns in found.parts_ns.items() if ns}
    assert ms == pytest.approx({"productive": 410.0, "end": 50.0 + 40.0, "start_up": 750.0})
    assert known.steps is not None
    assert (known.steps.trainings, known.steps.training, known.steps.all_steps) == (2, 2, 21)


def test_the_training_that_is_looked_at_is_the_last_with_enough_steps(tmp_path: Path) -> None:
    for attempt, steps in enumerate((30, 40, 3)):
        start = START_UNIX_NS + attempt * int(1e9)
        write_diary(tmp_path, {"forward": [10.0] * steps}, attempt=attempt, start_unix_ns=start)
    steps_of = job(write_record(tmp_path)).steps
    assert steps_of is not None
    assert (steps_of.trainings, steps_of.training, steps_of.all_steps) == (3, 2, 40)


def test_processes_side_by_side_have_no_goodput(tmp_path: Path) -> None:
    for attempt in range(2):
        write_diary(tmp_path, {"forward": [10.0] * 20}, attempt=attempt)
    assert isinstance(goodput(job(write_record(tmp_path))), Unavailable)
