"""A traced step becomes the step that its job takes without the profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diaries import profile_folder, write_diary

from stepscope.core.errors import Unavailable
from stepscope.predict.job import JobCall, MeasuredJob, replayed
from stepscope.predict.overlap import Transport
from stepscope.predict.prices import Links, own_prices
from stepscope.predict.scale import predict_scale
from stepscope.records.profile import PROFILED
from stepscope.results.diary import JobSteps, job_steps
from stepscope.results.job_from_traces import unprofiled
from stepscope.store.diary import read_diaries
from stepscope.store.layout import ProfileLayout

MS = 1e6
MIB = 1 << 20


def traced(**changes: Any) -> MeasuredJob:
    """130 ms under the profiler: 110 of work, 10 of them after the last reduction, whose 20 ms are exposed."""
    calls = tuple(
        JobCall(op="all_reduce", size_bytes=8 * MIB, ready_ns=at * MS, needed_ns=100 * MS, time_ns=20 * MS)
        for at in (60, 100)
    )
    fields: dict[str, Any] = {
        "name": "job", "source": "trace", "ranks": 2, "seen_ranks": 2, "nodes": 1, "backend": "gloo", "device": "CPU",
        "gpu": None, "step_ns": 130 * MS, "length_ns": 110 * MS, "compute_ns": 90 * MS, "copies_ns": 0.0,
        "input_ns": 10 * MS, "tail_ns": 10 * MS, "spread_ns": 0.0, "spread_from": 20, "spread_of": "ranks",
        "transport": Transport(lanes=1), "calls": calls, "points": ((2, 130 * MS),),
    }  # fmt: skip
    return MeasuredJob(**(fields | changes))


def timed(
    root: Path,
    *,
    ranks: int = 2,
    steps: int = 60,
    comm: float | None = 15.0,
    late: float = 0.0,
    first: int = 20,
    profiled: int = 8,
) -> JobSteps:
    """66 ms of work: 6 of data, 55 of forward and backward, 5 of optimizer; twice as long where it is profiled."""
    for rank in range(ranks):
        slow = [2.0 if first <= at < first + profiled else 1.0 for at in range(steps)]
        more = late if rank else 0.0
        columns = {
            "data": [6.0 * s for s in slow], "forward": [20.0 * s + more for s in slow],
            "backward": [35.0 * s for s in slow], "optimizer": [5.0 * s for s in slow],
        }  # fmt: skip
        if comm is not None:
            columns["comm"] = [(comm - more) * s for s in slow]
        flags = [PROFILED if s > 1 else 0 for s in slow]
        write_diary(root, columns, rank=rank, world_size=ranks, flags=flags)
    found = job_steps(read_diaries(ProfileLayout(root)))
    assert found is not None
    return found


def step_of(job: MeasuredJob) -> float:
    prices = own_prices(job, Links())
    return replayed(job, lambda *call: prices.of(*call).time_ns).step_ns


def test_the_replay_takes_the_timed_step_and_its_parts_are_the_diarys(tmp_path: Path) -> None:
    job = unprofiled(traced(), timed(tmp_path))
    assert isinstance(job, MeasuredJob)
    assert job.step_ns == pytest.approx(81 * MS)
    assert job.length_ns == pytest.approx(66 * MS)
    assert job.input_ns == pytest.approx(6 * MS)
    assert job.tail_ns == pytest.approx(5 * MS)  # the optimizer took twice as long under the profiler
    assert job.compute_ns + job.copies_ns + job.input_ns <= job.length_ns
    assert max(call.needed_ns for call in job.calls) == pytest.approx(61 * MS)
    assert step_of(job) == pytest.approx(81 * MS, rel=0.01)
    assert job.points == ((2, job.step_ns),)
    assert any("130 ms" in note and "81.0 ms" in note for note in job.notes)
    (step,) = predict_scale(job, [1], own_prices(job, Links())).steps
    assert (step.exposed_ns, step.comm_ns) == (0.0, 0.0)
    assert step.step_ns == pytest.approx(66 * MS, rel=0.01)


def test_the_work_is_that_of_the_last_rank_and_the_spread_that_of_all_steps(tmp_path: Path) -> None:
    job = unprofiled(traced(), timed(tmp_path, late=8.0))
    assert isinstance(job, MeasuredJob)
    assert job.length_ns == pytest.approx(74 * MS)
    assert job.spread_ns == pytest.approx(8 / 2**0.5 / (1 - 2 / 9) ** 1.5 * MS, rel=0.01)
    assert job.spread_from > 40


def test_waits_that_the_host_does_not_see_keep_their_traced_share(tmp_path: Path) -> None:
    job = unprofiled(traced(), timed(tmp_path, comm=None))
    assert isinstance(job, MeasuredJob)
    assert job.step_ns == pytest.approx(66 * MS)
    assert job.length_ns == pytest.approx(66 * 110 / 130 * MS)
    assert step_of(job) == pytest.approx(66 * MS, rel=0.01)


def test_hidden_collectives_keep_their_time(tmp_path: Path) -> None:
    calls = (JobCall(op="all_reduce", size_bytes=MIB, ready_ns=20 * MS, needed_ns=100 * MS, time_ns=2 * MS),)
    job = unprofiled(traced(calls=calls, step_ns=110 * MS), timed(tmp_path, comm=0.0))
    assert isinstance(job, MeasuredJob)
    assert job.calls[0].time_ns == 2 * MS
    assert step_of(job) == pytest.approx(job.step_ns)


def test_without_timed_steps_the_traced_ones_stay(tmp_path: Path) -> None:
    assert isinstance(unprofiled(traced(), None), Unavailable)
    few = timed(tmp_path, steps=30, first=2, profiled=30)
    assert isinstance(unprofiled(traced(), few), Unavailable)
    job = profile_folder(tmp_path / "run")
    assert job_steps(read_diaries(ProfileLayout(job))) is None


def test_ranks_without_a_processor_make_other_numbers_of_ranks_doubtful(tmp_path: Path) -> None:
    for rank in range(2):
        columns = {"forward": [10.0] * 60, "backward": [20.0] * 60, "comm": [5.0] * 60}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.2, cores=2)
    job = unprofiled(traced(), job_steps(read_diaries(ProfileLayout(tmp_path))))
    assert isinstance(job, MeasuredJob)
    assert (job.cores, job.doubt) == (2, pytest.approx((0.2**2 + 0.03**2) ** 0.5, rel=0.01))
