"""Idle time by cause: a planted late host, loader or wait shows under its own name.

Launch delays, late launches and the length of the queue.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.hand_events import Row, call, kernel, launch, mark, op, trace
from tests.trace_builder import build, write_job

from stepscope.records.trace_work import LaunchStatistics
from stepscope.report.views import trace_budget
from stepscope.traces import idle
from stepscope.traces.activity import verdict_of
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.idle import REFILL_NS, launch_statistics, queue_length
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
    planted = job.truth[1].idle_by_cause_ns[kind]
    assert sum(found.get(c, 0) for c in OURS[kind]) == pytest.approx(planted, rel=0.02)
    assert max(found, key=lambda c: found[c]) in OURS[kind]
    assert sum(i.idle_ns for i in punctual.idle) < sum(found.values())


def test_what_a_rank_does_after_a_short_wait_is_its_host_being_late(tmp_path: Path) -> None:
    job = build(world=2, steps=4, sync=True, late={1: 500_000}, late_kind="python")
    summary = analyse_job([write_job(job, tmp_path)], Wanted(sections=frozenset({"idle"})))
    found = {i.cause: i.idle_ns for i in summary.ranks[1].idle}
    assert found["host_late"] >= 4 * 400_000
    assert sum(found.values()) >= job.truth[1].idle_by_cause_ns["launch"]


def idled(*rows: Row) -> dict[str, tuple[int, str | None]]:
    """Idle ns and main call by cause, between a kernel that ends at 1,000 us and one that is launched later."""
    found = analyse(trace(launch(0, 5_000, 1), kernel("a", 10_000, 1_000_000, 1), *rows), Wanted())
    assert sum(i.idle_ns for i in found.idle) == found.budget.parts.idle_ns
    return {i.cause: (i.idle_ns, i.call) for i in found.idle}


def test_the_launch_after_a_wait_is_the_waits_and_what_the_host_then_does_is_not() -> None:
    wait = call("cudaStreamSynchronize", 20_000, 1_004_000)
    soon = idled(wait, launch(1_060_000, 1_065_000, 2), kernel("b", 1_068_000, 2_000_000, 2))
    assert soon == {"sync": (65_000, "cudaStreamSynchronize"), "launch_latency": (3_000, None)}
    late = idled(wait, launch(13_000_000, 13_005_000, 2), kernel("b", 13_008_000, 14_000_000, 2))
    assert late == {
        "sync": (4_000 + REFILL_NS, "cudaStreamSynchronize"),
        "host_late": (12_005_000 - 4_000 - REFILL_NS, "cudaLaunchKernel"),
        "launch_latency": (3_000, None),
    }


def test_only_a_wait_of_the_thread_that_launches_holds_the_launch_back() -> None:
    after = [launch(3_000_000, 3_005_000, 2), kernel("b", 3_008_000, 4_000_000, 2)]
    beside = call("cudaStreamSynchronize", 20_000, 2_900_000, thread="writer")
    assert idled(beside, *after)["host_late"] == (2_005_000, "cudaLaunchKernel")
    assert "sync" not in idled(beside, *after)
    assert idled(call("cudaFree", 20_000, 2_950_000), *after)["sync"] == (2_005_000, "cudaFree")


@pytest.mark.parametrize("back", ["main", "engine"])
def test_autograd_goes_on_where_the_training_loop_waited_and_the_other_way_round(back: str) -> None:
    wait = call("cudaStreamSynchronize", 20_000, 2_950_000, thread={"main": "engine", "engine": "main"}[back])
    node = op("autograd::engine::evaluate_function: MmBackward0", 2_990_000, 3_010_000, thread="engine")
    rows = [mark("ProfilerStep#3", 0, 4_000_000), node, wait]
    rows += [launch(3_000_000, 3_005_000, 2, thread=back), kernel("b", 3_008_000, 4_000_000, 2)]
    assert idled(*rows)["sync"] == (2_005_000, "cudaStreamSynchronize")


def test_a_loader_after_a_wait_is_data_loading_and_the_wait_stays_a_wait() -> None:
    found = idled(
        call("cudaStreamSynchronize", 20_000, 1_004_000),
        mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_010_000, 2_990_000),
        launch(3_000_000, 3_005_000, 2), kernel("b", 3_008_000, 4_000_000, 2),
    )  # fmt: skip
    assert found["sync"] == (4_000, "cudaStreamSynchronize")
    assert found["data"] == (2_001_000, None)


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


def test_delay_runs_from_the_start_of_the_call_to_the_start_of_the_work() -> None:
    found = statistics(trace(launch(0, 4, 1), launch(10, 14, 2), kernel("a", 6, 9, 1), kernel("b", 30, 31, 2)))
    assert (found.delay.min_ns, found.delay.max_ns, found.delay.mean_ns) == (6, 20, 13.0)
    assert found.call.median_ns == 4


def test_work_shorter_than_its_launch_is_counted_with_what_both_take() -> None:
    found = statistics(trace(launch(0, 4, 1), launch(10, 14, 2), kernel("a", 6, 9, 1), kernel("b", 30, 39, 2)))
    assert (found.short_count, found.short_ns, found.short_call_ns) == (1, 3, 4)


def test_a_launch_is_late_when_its_stream_had_nothing_left_to_do() -> None:
    found = statistics(trace(
        launch(0, 1, 1), launch(2, 3, 2), launch(50, 51, 3),
        kernel("a", 5, 20, 1), kernel("b", 20, 30, 2), kernel("c", 55, 60, 3), kernel("other stream", 1, 100, stream=9),
    ))  # fmt: skip
    assert (found.late_count, found.late_share) == (1, 0.5)


def test_events_without_a_launch_and_events_before_their_launch_are_counted() -> None:
    found = statistics(trace(launch(10, 12, 1), kernel("a", 8, 20, 1), kernel("b", 30, 40)))
    assert (found.launched, found.unlinked, found.early) == (1, 1, 1)


def test_without_any_launch_in_the_file_the_figures_are_unknown_with_the_reason() -> None:
    found = statistics(trace(kernel("a", 8, 20), kernel("b", 30, 40)))
    assert (found.delay, found.queue, found.late_share, found.unlinked) == (None, None, None, 2)
    assert found.unavailable is not None


def test_a_cpu_trace_has_no_launches() -> None:
    assert statistics(trace(op("aten::mm", 0, 5))) is None


def test_launches_per_second_are_over_the_time_the_host_launched_in() -> None:
    calls = [launch(10 * i, 10 * i + 10, i + 1) for i in range(5)]
    work = [kernel("a", 100 + i, 101 + i, i + 1) for i in range(5)]
    found = statistics(trace(*calls, *work))
    assert found.launches_per_s == 5 / 50e-9


def test_the_queue_holds_what_is_launched_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SLICES", 4)
    found = queue_length(np.array([0, 10, 20]), np.array([40, 60, 80]))
    assert found.longest == 3
    assert found.mean == (1 * 10 + 2 * 10 + 3 * 20 + 2 * 20 + 1 * 20) / 80
    assert found.empty_share == 0.0
    assert found.times_ns == (0, 20, 40, 60)
    assert found.longest_by_slice == (2, 3, 2, 1)


def test_the_queue_is_empty_where_work_starts_at_once() -> None:
    found = queue_length(np.array([0, 10]), np.array([0, 30]))
    assert (found.longest, found.empty_share) == (1, 10 / 30)


def test_no_work_makes_no_queue() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert queue_length(nothing, nothing) is None
    assert queue_length(np.array([5]), np.array([5])) is None
