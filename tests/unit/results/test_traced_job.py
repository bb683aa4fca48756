"""A job read from traces replays its own step, and the step that the same job takes on another network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import sharded_jobs
from tests.sharded_jobs import LATENCY_NS, folder_of, fsdp, pipeline
from tests.trace_builder import build, write_job

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.job import MeasuredJob, replayed
from stepscope.results.job_from_traces import SECTIONS, job_of_traces
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted

TIMES: dict[str, Any] = {"world": 2, "steps": 1, "forward_ns": 1_000_000, "backward_ns": 2_000_000}


def read(folder: Path) -> MeasuredJob:
    return job_of_traces(analyse_job(folder, Wanted(sections=SECTIONS)), name="job")


def built(folder: Path, **plan: Any) -> MeasuredJob:
    write_job(build(**(TIMES | plan)), folder)
    return read(folder)


def sharded(folder: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_ns: int, **plan: Any) -> MeasuredJob:
    monkeypatch.setattr(sharded_jobs, "BYTES_PER_NS", bytes_per_ns)
    folder_of(fsdp(**(TIMES | {"units": 4} | plan)), folder)
    return read(folder)


@pytest.mark.parametrize("shape", ["ddp", "naive"])
def test_a_job_of_reductions_on_a_network_that_it_did_not_run_on(tmp_path: Path, shape: str) -> None:
    fast, slow = (built(tmp_path / str(ns), shape=shape, layers=4, transfer_ns=ns) for ns in (200_000, 5_000_000))
    for job, other, transfer in ((fast, slow, 5_000_000), (slow, fast, 200_000)):
        found = replayed(job, lambda *_, transfer=transfer: transfer)  # type: ignore[misc]
        assert found.step_ns == pytest.approx(other.step_ns, rel=0.01)
        assert found.comm_ns == 4 * transfer


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_sharded_job_on_a_network_that_it_did_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: bool
) -> None:
    fast, slow = (sharded(tmp_path / str(r), monkeypatch, r, prefetch=prefetch) for r in (200, 15))
    assert slow.step_ns > 1.5 * fast.step_ns
    for job, other, rate in ((fast, slow, 15), (slow, fast, 200)):
        found = replayed(job, lambda _, size, __, rate=rate: LATENCY_NS + size / rate)  # type: ignore[misc]
        assert found.step_ns == pytest.approx(other.step_ns, rel=0.01)


def test_what_the_step_is_made_of(tmp_path: Path) -> None:
    job = built(tmp_path / "job", shape="ddp", layers=4, steps=3, transfer_ns=5_000_000, late={1: 500_000})
    assert (job.ranks, job.seen_ranks, len(job.calls), job.source) == (2, 2, 4, "trace")
    assert job.length_ns < job.step_ns
    assert job.compute_ns + job.copies_ns + job.input_ns + job.idle_ns == pytest.approx(job.length_ns)
    assert job.spread_of == "ranks"
    assert job.spread_ns > 0
    assert sum(g.size_bytes for g in job.gradients) == sum(call.size_bytes for call in job.calls)
    assert [g.ready_ns for g in job.gradients] == sorted(g.ready_ns for g in job.gradients)


def test_other_jobs_and_unmarked_steps_are_refused_with_the_reason(tmp_path: Path) -> None:
    folder_of(pipeline(world=2, layers=2, steps=1), tmp_path / "pipeline")
    with pytest.raises(UsageError, match="pipeline parallel: not predicted"):
        read(tmp_path / "pipeline")
    with pytest.raises(UsageError, match="tensor parallel"):
        built(tmp_path / "tensor", shape="tensor", world=4, layers=2)
    write_job(build(**TIMES | {"shape": "ddp", "layers": 2}), tmp_path / "job")
    for file in (tmp_path / "job").iterdir():
        file.write_text(file.read_text().replace("ProfilerStep#", "Step"))
    with pytest.raises(DataError, match="no step is marked"):
        read(tmp_path / "job")
