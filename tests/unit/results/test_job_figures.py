"""Figures of a job's diary as shares and times, of the job and of each rank, and conditions on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diaries import MS, job, planted, simulate, write_record

from stepscope.core.errors import CheckFailed, UsageError
from stepscope.records.finding import Diagnosis
from stepscope.report.conditions import parse_condition, refuse_failed
from stepscope.results.job_figures import DIARY, job_figures, rank_figures, worst


def test_shares_are_those_that_were_planted_and_times_are_of_the_step(tmp_path: Path) -> None:
    steps = job(planted(tmp_path)).steps
    assert steps is not None
    found = job_figures(steps)
    assert found.keys() == DIARY.keys()
    assert found["diary_step_ns"] == pytest.approx(36 * MS)
    assert found["input_fraction"] == pytest.approx(2 / 36)
    assert found["communication_fraction"] == pytest.approx((9 + 3) / 72)
    assert found["waiting_fraction"] == pytest.approx(6 / 72)
    assert found["computation_fraction"] == pytest.approx((25 + 31) / 72)
    by_rank = rank_figures(steps)
    assert by_rank[1]["diary_backward_ns"] == pytest.approx(22 * MS)
    assert by_rank[0]["waiting_fraction"] == pytest.approx(6 / 36)
    assert by_rank[1]["waiting_fraction"] == pytest.approx(0)
    assert by_rank[0].keys() == DIARY.keys()


def test_what_nobody_saw_is_none_and_of_several_jobs_the_worst_counts(tmp_path: Path) -> None:
    from tests.diaries import write_diary

    write_diary(write_record(tmp_path / "a"), {"forward": [3.0] * 30, "backward": [5.0] * 30}, world_size=2)
    simulate(write_record(tmp_path / "b"), ranks=2, steps=50, seed=1, noise=0.0)
    figures = [job_figures(steps) for name in "ab" if (steps := job(tmp_path / name).steps) is not None]
    assert figures[0]["communication_fraction"] is None
    assert figures[0]["input_fraction"] is None
    assert worst(figures)["input_fraction"] == figures[1]["input_fraction"] == pytest.approx(0.2 / 13.7)
    assert set(worst([]).values()) == {None}


def test_a_share_may_be_asked_for_in_per_cent_and_by_its_name_alone() -> None:
    condition = parse_condition("input > 20 %", figures=DIARY, rules=())
    assert (condition.key, condition.number, condition.percent) == ("input_fraction", 0.2, False)
    nothing = Diagnosis(findings=(), skipped=(), quiet=())
    refuse_failed([condition], {"input_fraction": 0.19}, nothing)
    with pytest.raises(CheckFailed) as failed:
        refuse_failed([condition], {"input_fraction": 0.38, "waiting_fraction": 0.5}, nothing)
    assert failed.value.why == "input_fraction = 0.38"
    with pytest.raises(UsageError, match="change against a first run"):
        parse_condition("diary_step_ns > 5 %", figures=DIARY, rules=())
