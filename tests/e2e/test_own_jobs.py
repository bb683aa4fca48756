"""The suite of planted jobs (benchmarks/own_jobs): the quickest three as the suite runs them, and all of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from benchmarks.own_jobs import planted, running
from benchmarks.own_jobs.planted import LATE, PLANTED, frameworks_folder
from benchmarks.own_jobs.suite import profiled
from benchmarks.own_jobs.truth import Truth, measure
from tests.torch_forks import ForkedPopen, shared_server

pytestmark = pytest.mark.e2e

BY_NAME = {job.name: job for job in PLANTED}


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have imported torch: three more imports a job would be most of these tests' time."""
    monkeypatch.setattr(running, "Popen", partial(ForkedPopen, server=shared_server()))
    monkeypatch.setattr(planted, "TORCHRUN", (sys.executable, "-m", "torch.distributed.run"))


RIGHT = "loss 0.004259\n"


@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "code", "out"), [("late_rank", 0, RIGHT), ("crash", 1, ""), ("clean_fixed", 0, RIGHT)]
)
def test_the_first_verdict_names_what_was_planted_and_accuses_no_clean_job(
    tmp_path: Path, name: str, code: int, out: str
) -> None:
    truth = Truth(code=code, out=out, step_s=None)
    run = profiled(BY_NAME[name], truth, folder=tmp_path / name, extra={}, contended=True)
    assert run.left == 0
    assert run.grade.job_equal
    if name == "late_rank":
        assert any(cost.kind in LATE and cost.ranks == (1,) for cost in run.said.costs), run.said
    elif name == "crash":
        assert run.grade.right, run.said
    else:
        assert not run.grade.accused, run.said
        assert run.said.kind not in (None, "crash", "killed", "hang", "no-steps")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nine_of_ten_first_verdicts_are_right_and_no_clean_job_is_accused(tmp_path: Path) -> None:
    frameworks = frameworks_folder()
    runs = []
    for job in PLANTED:
        if job.missing(frameworks):
            continue
        extra = {"PYTHONPATH": str(frameworks)} if job.needs and frameworks else {}
        folder = tmp_path / job.name
        truth = measure(replace(job, without=()), rounds=1, folder=folder, extra=extra)
        runs.append(profiled(job, truth, folder=folder / "run", extra=extra, contended=True))
    assert [run.job for run in runs if not run.grade.job_equal or run.left] == []
    assert [run.job for run in runs if run.grade.accused] == []
    wrong = [f"{run.job}: {run.said.kind}" for run in runs if not run.grade.right]
    assert len(wrong) <= len(runs) / 10, wrong
