"""Idle time by cause: a planted late host, loader or wait shows under its own name.

Launch delays, late launches and the length of the queue.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.hand_events import call, kernel, launch, mark, op, trace
from tests.trace_builder import build, write_job

from stepscope.records.trace_work import LaunchStatistics
from stepscope.report.views import trace_budget
from stepscope.traces.activity import verdict_of
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.idle import idle_causes, launch_statistics, queue_length
from stepscope.traces.job import analyse_job
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

OURS = {"launch": ("host_late", "launch_latency"), "data": ("data",), "sync": ("sync",)}


@pytest.mark.parametrize("kind", ["launch", "data", "sync"])
def test_the_late_rank_idles_for_the_planted_cause(kind: str, tmp_path: Path) -> None:
    job = build(world=2, steps=4, sync=True, data_ns=100_000, late={1: 500_000}, late_kind=kind)
    summary = analyse_job([write_job(job, tmp_path)], Wanted(sections=frozenset({"idle"})))
    late, punctual = summary.ranks[1], summary.ranks[0]
    found = {i.cause: i.idle_ns for i in late.idle}
    planted = job.truth[1].idle_by_cause_ns[kind]  # between the first work and the last
    before_ns = late.budget.before_work_ns if kind == "data" else 0
    assert sum(found.get(c, 0) for c in OURS[kind]) == pytest.approx(planted + before_ns, rel=0.02)
    assert max(found, key=lambda c: found[c]) in OURS[kind]
    assert sum(i.idle_ns for i in punctual.idle) < sum(found.values())


def test_what_a_rank_does_after_a_short_wait_is_its_host_being_late(tmp_path: Path) -> None:
    job = build(world=2, steps=4, sync=True, late={1: 500_000}, late_kind="python")
    summary = analyse_job([write_job(job, tmp_path)], Wanted(sections=frozenset({"idle"})))
    found = {i.cause: i.idle_ns for i in summary.ranks[1].idle}
    assert found["host_late"] >= 4 * 250_000
    assert sum(found.values()) >= job.truth[1].idle_by_cause_ns["launch"]


def test_what_the_host_does_before_it_loads_is_no_loading() -> None:
    ms = 1_000_000
    rows = [launch(0, 5_000, 1), kernel("gemm", 10_000, ms, 1), call("cudaDeviceSynchronize", 6_000, ms)]
    rows += [mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 6 * ms, 20 * ms)]
    rows += [launch(20 * ms, 20 * ms + 5_000, 2), kernel("gemm", 20 * ms + 10_000, 21 * ms, 2)]
    causes = {idle.cause: idle.idle_ns for idle in idle_causes(RankView(trace(*rows)))}
    assert causes["data"] == 14 * ms + 5_000
    assert causes["host_late"] == 5 * ms


def test_a_cpu_job_idles_outside_operators(tmp_path: Path) -> None:
    job = build(device="gloo", world=2, steps=4, data_ns=300_000)
    summary = analyse_job([write_job(job, tmp_path)], Wanted(sections=frozenset({"idle"})))
    for each in summary.ranks:
        found = {i.cause: i.idle_ns for i in each.idle}
        assert set(found) == {"data", "outside_operators"}
        assert sum(found.values()) == each.budget.parts.idle_ns
    assert [row.values[1].text for row in trace_budget.idle_table(summary).rows[:2]] == [
        "the host was loading data",
        "no operator ran: Python between operators, or waiting",
    ]


def test_a_cpu_job_that_is_mostly_python_between_operators_is_overhead_bound() -> None:
    made = trace(op("aten::mm", 0, 100), op("aten::mm", 900, 1000))
    found = analyse(made, Wanted(sections=frozenset({"idle"})))
    assert [(i.cause, i.idle_ns, i.gap_count) for i in found.idle] == [("outside_operators", 800, 1)]
    assert found.budget is not None
    verdict = verdict_of(found.budget, found.idle)
    assert (verdict.kind, verdict.share) == ("overhead", 0.8)


def test_a_launch_that_was_not_recorded_is_said_so(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path)
    for file in folder.iterdir():
        file.write_text(file.read_text().replace('"cat": "cuda_runtime"', '"cat": "python_function"'))
    summary = analyse_job([folder], Wanted(sections=frozenset({"idle"})))
    for each in summary.ranks:
        assert {i.cause for i in each.idle} <= {"unknown"}
        assert {s.boundary for s in each.steps} == {"host"}


def statistics(made: RankTrace) -> LaunchStatistics | None:
    return launch_statistics(RankView(made))


def test_events_without_a_launch_and_events_before_their_launch_are_counted() -> None:
    found = statistics(trace(launch(10, 12, 1), kernel("a", 8, 20, 1), kernel("b", 30, 40)))
    assert (found.launched, found.unlinked, found.early) == (1, 1, 1)


def test_without_any_launch_in_the_file_the_figures_are_unknown_with_the_reason() -> None:
    found = statistics(trace(kernel("a", 8, 20), kernel("b", 30, 40)))
    assert (found.delay, found.queue, found.late_share, found.unlinked) == (None, None, None, 2)
    assert found.unavailable is not None


def test_no_work_makes_no_queue() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert queue_length(nothing, nothing) is None
    assert queue_length(np.array([5]), np.array([5])) is None
