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


def test_a_step_begins_with_its_mark_where_nothing_older_runs() -> None:
    rows = [r for r in deep_queue(launched_before="unrecorded") if r.name != "old"]
    found = analyse(trace(*rows), Wanted())
    assert [s.start_ns for s in found.steps] == [0, 372 * MS]


def waiting_steps(*, work_first: bool, steps: int = 3) -> list[Row]:
    """Steps of 100 ms: 60 ms without work of the device, then 40 ms with, or the other way round."""
    rows: list[Row] = []
    for step in range(steps):
        at = step * 100 * MS
        begin = at if work_first else at + 60 * MS
        rows += [
            mark(f"ProfilerStep#{step}", at, at + 100 * MS),
            op("aten::mm", begin, begin + MS), launch(begin, begin + 1000, step + 1),
            kernel("gemm", begin + 1000, begin + 40 * MS, step + 1),
        ]  # fmt: skip
    return rows


@pytest.mark.parametrize("work_first", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_are_whole_at_both_ends_of_the_capture(work_first: bool, steps: int) -> None:
    found = analyse(trace(*waiting_steps(work_first=work_first, steps=steps)), Wanted())
    assert [s.parts.window_ns for s in found.steps] == [100 * MS] * steps
    budget = found.budget
    assert budget.parts.window_ns == steps * 100 * MS
    outside = budget.before_work_ns + budget.after_work_ns
    assert outside == 60 * MS + 1000
    assert {budget.before_work_ns, budget.after_work_ns} == ({1000, 60 * MS} if work_first else {60 * MS + 1000, 0})
    idle = {i.cause: i.idle_ns for i in found.idle}
    assert sum(idle.values()) == budget.parts.idle_ns
    assert idle["host_late"] >= steps * 60 * MS
    assert found.host_lateness.python_ns >= 0.99 * steps * 60 * MS
    assert sum(p.idle_ns for p in found.phases) == budget.parts.idle_ns


def test_what_the_profiler_marks_behind_the_last_step_is_none() -> None:
    rows = [*waiting_steps(work_first=True), mark("ProfilerStep#3", 300 * MS, 5_000 * MS)]
    found = analyse(trace(*rows), Wanted())
    assert [s.parts.window_ns // MS for s in found.steps] == [100, 100, 100, 0]
    assert found.budget.parts.window_ns == 300 * MS
    queued = [*rows, launch(290 * MS, 291 * MS, 9), kernel("late", 291 * MS, 340 * MS, 9)]
    found = analyse(trace(*queued), Wanted())
    assert [s.parts.window_ns // MS for s in found.steps] == [100, 100, 140, 0]
    assert found.budget.after_work_ns == 0


def test_steps_from_one_update_to_the_next() -> None:
    rows: list[Row] = []
    for step in range(4):
        at = step * 100 * MS
        rows += [
            op("aten::mm", at + 10 * MS, at + 11 * MS), launch(at + 10 * MS, at + 11 * MS, 10 * step + 1),
            kernel("gemm", at + 11 * MS, at + 60 * MS, 10 * step + 1),
            op("autograd::engine::evaluate_function: Mm", at + 20 * MS, at + 30 * MS, thread="b", forward_thread=1),
            mark("Optimizer.step#Muon.step", at + 60 * MS, at + 65 * MS),
            mark("Optimizer.step#AdamW.step", at + 65 * MS, at + 70 * MS),
            launch(at + 66 * MS, at + 67 * MS, 10 * step + 2), kernel("adam", at + 67 * MS, at + 70 * MS, 10 * step + 2),
        ]  # fmt: skip
    steps = analyse(trace(*rows), Wanted()).steps
    assert [s.parts.window_ns for s in steps] == [100 * MS] * 3
    assert {s.marked_by for s in steps} == {"optimizer"}
    around = [mark(f"step {n}", n * 100 * MS + 59 * MS, n * 100 * MS + 71 * MS) for n in range(4)]
    assert {s.marked_by for s in analyse(trace(*rows, *around), Wanted()).steps} == {"optimizer"}
    whole = [mark(f"train_step {n + 7}", n * 100 * MS, n * 100 * MS + 95 * MS) for n in range(4)]
    ranges = analyse(trace(*rows, *whole), Wanted()).steps
    assert [(s.step, s.marked_by, s.parts.window_ns // MS) for s in ranges] == [
        (n, "range", 100 - 5 * (n == 10)) for n in range(7, 11)
    ]


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["execute_context_1(9)_generation_0(0)", "execute_context_0(0)_generation_4(4)"], ["prefill", "decode"]),
        (["execute_new_2_cached_0", "execute_new_0_cached_2", "execute_new_0_cached_2"], ["prefill", "decode", "decode"]),
        (["step[EXTEND bs=1 toks=97]", "step[DECODE bs=1]"], ["prefill", "decode"]),
        (["Iteration", "Iteration"], ["step", "step"]),
        (["train_step", "train_step"], ["step", "step"]),
        (["[pl][profile]run_training_batch", "[pl][profile]run_training_batch"], ["step", "step"]),
        (["train_step"], []),
        (["forward", "forward"], []),
        (["ProfilerStep#9"], ["step"]),
    ],
)  # fmt: skip
def test_ranges_that_repeat_are_steps(names: list[str], kinds: list[str]) -> None:
    rows: list[Row] = []
    for n, name in enumerate(names):
        at = n * 10 * MS
        rows += [
            mark(name, at, at + 9 * MS), op("aten::mm", at + MS, at + 2 * MS), launch(at + MS, at + 2 * MS, n + 1),
            kernel("gemm", at + 2 * MS, at + 8 * MS, n + 1),
        ]  # fmt: skip
    found = analyse(trace(*rows), Wanted())
    assert [s.kind for s in found.steps] == kinds
    notes = " ".join(trace_budget.steps_table(combine([found])).notes)
    assert ("no steps are marked" in notes) == (not kinds)
    if "decode" in kinds:
        assert "of decode, median" in notes
