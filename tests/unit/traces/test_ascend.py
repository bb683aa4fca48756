"""Profiles of other makers' devices become devices: Ascend's trace_view.json, MTIA's events."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ascend_trace import CANN, COMMUNICATION, HARDWARE, PYTHON, trace_view
from tests.trace_builder import build, write_job

from stepscope.results.open import load_evidence
from stepscope.traces.events import Category
from stepscope.traces.job import analyse_job
from stepscope.traces.load import load_file
from stepscope.traces.sections import Wanted

US = 1000


@pytest.mark.parametrize("communication", ["Communication", "HCCL"])
@pytest.mark.parametrize("sections", [None, frozenset({"budget"})])
def test_parts_are_those_of_the_overlap_analysis(
    tmp_path: Path, communication: str, sections: frozenset[str] | None
) -> None:
    text, parts = trace_view(steps=5, communication=communication)
    (tmp_path / "trace_view.json").write_text(text)
    summary = analyse_job(tmp_path, Wanted() if sections is None else Wanted(sections=sections))
    (rank,) = summary.ranks
    assert rank.budget is not None
    assert rank.budget.source == "device"
    budget = rank.budget.parts
    assert budget.compute_ns == 5 * parts["compute"] * US
    assert budget.comm_ns == 5 * parts["communication"] * US
    assert budget.overlap_ns == 5 * parts["overlap"] * US
    assert budget.exposed_memory_ns == 5 * parts["copy"] * US
    assert not any(fact.matters for fact in summary.quality)


def test_launches_and_kernels_are_linked(tmp_path: Path) -> None:
    (tmp_path / "trace_view.json").write_text(trace_view()[0])
    trace = load_file(tmp_path / "trace_view.json")
    events = trace.events
    kernels = events.where(Category.KERNEL)
    calls = events.where(Category.RUNTIME)
    assert set(events.correlation[kernels]) <= set(events.correlation[calls])
    assert {events.threads[int(t)][0] for t in events.thread[kernels]} == {str(HARDWARE)}
    assert {events.threads[int(t)] for t in events.thread[calls]} == {(str(PYTHON), "1")}
    assert str(COMMUNICATION) not in {events.threads[int(t)][0] for t in events.thread}
    assert str(CANN) not in {events.threads[int(t)][0] for t in events.thread}
    assert {events.name_of(int(i)) for i in calls} == {"launch", "aclrtMemcpyAsync"}
    assert not trace.meta.unread


def test_folders_of_ranks_are_one_job_whose_ranks_lie_beside_them(tmp_path: Path) -> None:
    for rank, process in ((0, 77), (1, 61)):
        folder = tmp_path / f"host_{process}_2024061208283_ascend_pt"
        (folder / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text(trace_view()[0])
        (folder / f"profiler_info_{rank}.json").write_text("{}")
        (folder / "PROF_0001_2024" / "mindstudio_profiler_output").mkdir(parents=True)
        (folder / "PROF_0001_2024" / "mindstudio_profiler_output" / "msprof_1.json").write_text(trace_view()[0])
    assert [p.facts.rank for p in analyse_job(tmp_path).ranks] == [0, 1]
    (job,) = load_evidence([tmp_path]).traces
    assert [p.facts.rank for p in job.summary.ranks] == [0, 1]


def test_mtia_has_kernels(tmp_path: Path) -> None:
    whole = analyse_job(write_job(build(world=2), tmp_path / "cuda"))
    for file in write_job(build(world=2), tmp_path / "mtia").iterdir():
        text = file.read_text().replace('"cat": "kernel"', '"cat": "mtia_ccp_events"')
        file.write_text(text.replace('"cat": "cuda_runtime"', '"cat": "mtia_runtime"'))
    for wanted in (Wanted(), Wanted(sections=frozenset({"budget"}))):
        summary = analyse_job(tmp_path / "mtia", wanted)
        assert [p.budget.parts if p.budget else None for p in summary.ranks] == [
            p.budget.parts if p.budget else None for p in whole.ranks
        ]
