"""Phases of a step from the job's own ranges, and what counts as computation on CPU traces; times in ns by hand."""

from __future__ import annotations

import pytest
from tests.hand_events import mark, op, trace

from stepscope.records.trace_budget import PhaseBudget
from stepscope.traces.activity import activity_of, parts_within
from stepscope.traces.events import RankTrace
from stepscope.traces.nesting import launches_of
from stepscope.traces.steps import phase_budgets, phase_spans


def _phases(made: RankTrace, regions: dict[str, str] | None = None) -> dict[str, PhaseBudget]:
    activity = activity_of(made.events)
    launches = launches_of(made.events, activity.indices)
    rows = phase_budgets(made, activity, launches, phase_spans(made.events, regions or {}))
    return {row.phase: row for row in rows}


NAIVE = (
    mark("forward", 0, 100), op("aten::mm", 0, 100),
    mark("backward_COMPUTE_ONLY", 100, 300), op("autograd::engine::evaluate_function: MmBackward0", 100, 300),
    mark("allreduce_ALL_GRADS_SEQUENTIAL", 300, 600),
    op("c10d::allreduce_", 300, 310), mark("gloo:all_reduce", 320, 450, thread="gloo"),
    op("c10d::allreduce_", 450, 460), mark("gloo:all_reduce", 470, 600, thread="gloo"),
    mark("optimizer", 600, 650), op("aten::add_", 600, 650),
)  # fmt: skip


def test_reductions_after_backward_are_a_phase_of_their_own() -> None:
    rows = _phases(trace(*NAIVE))
    # From the end of each call on, when gloo has not begun yet.
    assert (rows["communication"].exposed_comm_ns, rows["communication"].comm_ns) == (280, 280)
    assert {name: rows[name].comm_ns for name in ("forward", "backward", "optimizer")} == {
        "forward": 0, "backward": 0, "optimizer": 0,
    }  # fmt: skip
    assert (rows["forward"].compute_ns, rows["backward"].compute_ns, rows["optimizer"].compute_ns) == (100, 200, 50)


def test_the_same_holds_where_no_range_marks_them() -> None:
    bare = [row for row in NAIVE if not row.name.startswith(("forward", "backward", "allreduce", "optimizer"))]
    rows = _phases(trace(*bare))
    assert rows["communication"].exposed_comm_ns == 280  # from the end of each call on, when gloo has not begun yet
    assert rows["backward"].comm_ns == rows["forward"].comm_ns == 0


def test_reductions_that_backward_calls_are_of_backward() -> None:
    rows = _phases(
        trace(
            op("autograd::engine::evaluate_function: MmBackward0", 0, 200),
            op("c10d::allreduce_", 90, 95), mark("gloo:all_reduce", 100, 180, thread="gloo"),
            op("aten::mm", 95, 200),
        )
    )  # fmt: skip
    assert rows["backward"].comm_ns == 80
    assert rows["communication"].comm_ns == 0


def test_a_range_is_the_phase_that_the_user_states() -> None:
    made = trace(
        mark("my_stuff/1", 0, 100), op("aten::mm", 0, 100), mark("forward", 100, 150), op("aten::mm", 100, 150)
    )
    assert _phases(made)["other"].compute_ns == 100
    assert _phases(made, {"my_stuff": "backward"})["backward"].compute_ns == 100


@pytest.mark.parametrize("waiting", ["_c10d_functional::wait_tensor", "c10d::barrier", "c10d_functional::wait_tensor"])
def test_an_operator_that_waits_for_a_collective_computes_nothing(waiting: str) -> None:
    """aten::add of a tensor-parallel layer: 20 of its own, 80 in which it waits for the all-reduce."""
    made = trace(
        op("aten::mm", 0, 50),
        op("aten::add", 50, 150),
        op("PythonSubclass", 55, 145),
        op(waiting, 60, 140),
        mark("gloo:all_reduce", 60, 135, thread="gloo"),
    )
    activity = activity_of(made.events)
    window = activity.window
    assert window == (0, 150)
    parts = parts_within(activity, low=0, high=150)
    assert (parts.compute_ns, parts.exposed_comm_ns, parts.overlap_ns, parts.idle_ns) == (70, 75, 0, 5)


def test_what_another_thread_computes_meanwhile_hides_the_collective() -> None:
    made = trace(
        op("_c10d_functional::wait_tensor", 0, 100),
        mark("gloo:all_reduce", 0, 100, thread="gloo"),
        op("aten::mm", 20, 60, thread="autograd"),
    )
    parts = parts_within(activity_of(made.events), low=0, high=100)
    assert (parts.compute_ns, parts.overlap_ns, parts.exposed_comm_ns) == (40, 40, 60)
