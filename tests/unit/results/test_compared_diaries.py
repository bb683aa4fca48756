"""Two profiled jobs by all their steps: what is the same is not called different, what differs by 5% is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.diaries import job as profiled
from tests.diaries import step_table, write_diary

from stepscope.core.errors import Unavailable
from stepscope.records.profile import FIRST, PROFILED
from stepscope.results.comparing import (
    STEP_METRIC,
    Side,
    compare,
    part_means,
    timed_steps,
)
from stepscope.results.diary import JobSteps
from stepscope.results.evidence import Evidence
from stepscope.stats.step_table import StepTable
from stepscope.store.diary import RankDiary, read_diaries
from stepscope.store.layout import ProfileLayout

MS = 1e6


def job(step: NDArray[np.float64], *, contended: float = 0.0, **shares: float) -> StepTable:
    return step_table(step[None], shares, delay=contended)


def diaries(root: Path, *, ranks: int = 2, steps: int = 60, slow: float = 1.0, **more: Any) -> tuple[RankDiary, ...]:
    for rank in range(ranks):
        rng = np.random.default_rng(rank)
        forward = slow * (6 + rank) * np.exp(0.01 * rng.normal(size=steps))
        flags = [FIRST if at == 0 else PROFILED if 20 <= at < 28 else 0 for at in range(steps)]
        columns = {"forward": forward, "backward": 10 * np.ones(steps), "outside": np.zeros(steps)}
        columns["outside"][30] = 100.0
        write_diary(root, columns, rank=rank, world_size=ranks, flags=flags, **more)
    return read_diaries(ProfileLayout(root))


def test_timed_steps_are_those_of_every_rank_without_window_warm_up_and_what_is_outside(tmp_path: Path) -> None:
    found = timed_steps(diaries(tmp_path))
    assert isinstance(found, JobSteps)
    assert found.steps == 60 - 1 - 8 - 3 - 1  # and without the step of the evaluation
    assert np.median(found.step_ns) == pytest.approx(17 * MS, rel=0.01)  # of rank 1, without the evaluation
    assert found.step_ns.max() < 30 * MS
    assert part_means(found)["forward"].mean() == pytest.approx(6.5 * MS, rel=0.01)
    assert found.outside_ns == pytest.approx(100 / 59 * MS)
    assert np.median(found.whole_ns[0]) == pytest.approx(16 * MS, rel=0.01)
    assert (set(part_means(found)), found.ranks) == ({"forward", "backward"}, 2)


def test_restarted_processes_are_left_out_and_without_a_timed_step_there_is_none(tmp_path: Path) -> None:
    diaries(tmp_path, slow=3.0)
    found = timed_steps(diaries(tmp_path, attempt=1, start_unix_ns=1_800_000_000_000_000_000))
    assert isinstance(found, JobSteps)
    assert np.median(found.step_ns) == pytest.approx(17 * MS, rel=0.01)
    assert isinstance(timed_steps(()), Unavailable)
    write_diary(tmp_path / "b", {"forward": [1.0, 2.0]}, flags=PROFILED)
    assert isinstance(timed_steps(read_diaries(ProfileLayout(tmp_path / "b"))), Unavailable)


def test_two_sides_with_diaries_need_no_traces(tmp_path: Path) -> None:
    sides = [
        Side(name=name, rounds=(Evidence(sources=()),), diaries=diaries(tmp_path / name, steps=400, slow=slow))
        for name, slow in (("a", 1.0), ("b", 1.5))
    ]
    found = compare(sides)
    step = next(f for f in found.figures if f.metric == STEP_METRIC)
    assert step.verdict == "worse"
    assert step.ratio == pytest.approx(20.5 / 17, rel=0.01)
    assert {f.metric for f in found.figures} >= {"diary_forward_ns", "diary_backward_ns", "diary_outside_ns"}


@pytest.mark.parametrize(
    ("commands", "told"),
    [
        (("torchrun train.py --lr 1", "torchrun train.py --lr 2"), ("... 1", "... 2")),
        (("python a.py --x", "python b.py --x"), ("... a.py", "... b.py")),
        (("python a.py", "python a.py --compile"), ("... -", "... --compile")),
        (("python a.py", "python a.py"), None),
    ],
)
def test_the_command_is_the_first_known_difference(
    commands: tuple[str, str], told: tuple[str, str] | None, tmp_path: Path
) -> None:
    sides = []
    for name, command in zip("ab", commands, strict=True):
        folder = tmp_path / name
        write_diary(folder, {"forward": [10.0] * 100})
        record = {"command": command.split(), "folder": ".", "host": "node0", "first": None, "argv": []}
        (folder / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
        evidence = Evidence(sources=(), profiled=(profiled(folder),))
        sides.append(Side(name=name, rounds=(evidence,), diaries=read_diaries(ProfileLayout(folder))))
    differ = compare(sides).differences
    assert [each.values for each in differ if each.key == "command"] == ([] if told is None else [told])
    assert told is None or differ[0].key == "command"
