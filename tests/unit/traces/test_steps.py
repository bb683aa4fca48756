"""Where a step begins and ends on the device, and what is in none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hand_events import Row, copy, kernel, launch, mark, op, trace

from stepscope.report.views import trace_budget
from stepscope.traces.events import Note
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

MS = 1_000_000


def deep_queue(*, launched_before: str) -> list[Row]:
    """Two steps of 216 ms; 156 ms of kernels launched before them are still queued when the first begins.

    Its input's copy runs on a stream of its own at once, its kernels behind the queue. launched_before: "unrecorded", or
    "recorded" for launches that the capture shows in front of the first step.
    """
    rows = [mark("ProfilerStep#5", 0, 216 * MS), mark("ProfilerStep#6", 216 * MS, 432 * MS), op("aten::copy_", 0, MS)]
    if launched_before == "recorded":
        rows.append(launch(-3000, -2000, 1))
    rows += [kernel("old", -1000, 156 * MS, 1)]
    for step in range(2):
        at, number = step * 216 * MS, 10 * (step + 1)
        rows += [
            launch(at + 1000, at + 2000, number), copy("Memcpy HtoD", at + 3000, at + MS, number, stream=20),
            launch(at + 4000, at + 5000, number + 1),
            kernel("gemm", at + 156 * MS, at + 372 * MS, number + 1),
        ]  # fmt: skip
    return rows


@pytest.mark.parametrize("launched_before", ["unrecorded", "recorded"])
def test_work_launched_before_the_first_step_is_in_no_step(launched_before: str) -> None:
    summary = combine([analyse(trace(*deep_queue(launched_before=launched_before)), Wanted())])
    steps = summary.ranks[0].steps
    assert [s.parts.window_ns for s in steps] == [216 * MS, 216 * MS]
    assert [s.host_ns for s in steps] == [216 * MS, 216 * MS]
    outside = summary.ranks[0].outside
    assert outside.before_ns == 156 * MS + 1000
    assert any("before the first step's work" in note for note in trace_budget.steps_table(summary).notes)


def test_a_step_begins_with_its_copy_where_nothing_older_computes() -> None:
    rows = [r for r in deep_queue(launched_before="unrecorded") if r.name != "old"]
    found = analyse(trace(*rows), Wanted())
    assert [s.start_ns for s in found.steps] == [3000, 372 * MS]


@pytest.mark.parametrize("written", ["in order of time", "host first"])
def test_the_fragment_of_a_cut_file_is_no_step_and_its_work_is_outside(written: str) -> None:
    """Cut in the third step: in order of time no fourth is there; with the host first the fourth has no device work."""
    there = 3 if written == "in order of time" else 4
    rows = [mark(f"ProfilerStep#{n}", n * MS, (n + 1) * MS) for n in range(there)]
    for n in range(there):
        rows.append(launch(n * MS + 10, n * MS + 20, n + 1))
        if n < 3:
            rows.append(kernel("gemm", n * MS + 100, n * MS + (500_000, 500_000, 90_000)[n], n + 1))
    cut = replace(trace(*rows), notes=(Note(kind="truncated", text="the file stops inside its list of events"),))
    found = analyse(cut, Wanted())
    assert [(s.step, s.parts.compute_ns) for s in found.steps] == [(0, 499_900), (1, 499_900)]
    assert found.outside.after_last_step == 1
    assert len(analyse(trace(*rows), Wanted()).steps) == there


def ahead(*, copies: bool) -> list[Row]:
    """Six steps of ten kernels of 600 us; the host launches all of them within 1 ms, and each step's input is copied on a
    stream of its own as soon as it is launched."""
    rows: list[Row] = []
    for step in range(6):
        at, number = 150_000 * step, 100 * step
        rows.append(mark(f"ProfilerStep#{step}", at, at + 150_000))
        if copies:
            copied = max(at + 10_000, 300_000 * step + 10_000)
            rows += [launch(at, at + 2000, number), copy("Memcpy HtoD", copied, copied + 300_000, number, stream=30)]
        for i in range(10):
            called, begin = at + 3000 * (i + 1), 310_000 + 600_000 * (10 * step + i)
            rows += [
                launch(called, called + 2000, number + i + 1),
                kernel("gemm", begin, begin + 600_000, number + i + 1),
            ]
    return rows


def test_copies_ahead_of_the_computation_do_not_begin_a_step() -> None:
    copied = analyse(trace(*ahead(copies=True)), Wanted()).steps
    plain = analyse(trace(*ahead(copies=False)), Wanted()).steps
    assert [s.parts.window_ns for s in plain] == [6 * MS] * 6
    # Nothing computes yet when the first step's copy runs.
    assert [s.parts.window_ns for s in copied] == [6 * MS + 300_000] + [6 * MS] * 5
    assert [s.parts.compute_ns for s in copied] == [6 * MS] * 6


def test_a_collective_without_a_recorded_launch_is_not_the_first_steps() -> None:
    rows = deep_queue(launched_before="unrecorded")
    rows += [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200 * MS, 210 * MS, 2, stream=30)]
    found = analyse(trace(*rows), Wanted())
    assert [c.step for c in found.communication.collectives] == [None]
