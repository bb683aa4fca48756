"""Where a step begins and ends on the device, and what is in none."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, copy, kernel, launch, mark, op, trace

from stepscope.report.views import trace_budget
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
