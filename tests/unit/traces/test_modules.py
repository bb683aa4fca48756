"""Time by module: what runs in a module is the innermost one's, what autograd runs is the differentiated operator's."""

from __future__ import annotations

import numpy as np
from tests.hand_events import Row, kernel, launch, mark, op, trace

from stepscope.core.errors import Unavailable
from stepscope.records.trace_work import ModuleRow
from stepscope.traces.activity import activity_of
from stepscope.traces.events import MemoryInstants, RankTrace
from stepscope.traces.modules import module_rows
from stepscope.traces.nesting import launches_of

AUTOGRAD = "autograd::engine::evaluate_function: AddmmBackward0"


def rows_of(made: RankTrace) -> dict[str, ModuleRow]:
    activity = activity_of(made.events)
    found = module_rows(made, activity, launches_of(made.events, activity.indices))
    assert not isinstance(found, Unavailable)
    return {row.module: row for row in found}


def pass_of(*more: Row) -> list[Row]:
    """model calls a and b; backward of b, then of a, on autograd's thread."""
    return [
        mark("module: model", 0, 100), mark("module: a", 10, 40), mark("module: b", 50, 90),
        op("aten::addmm", 12, 32, sequence=5), op("aten::addmm", 55, 85, sequence=6), op("aten::add", 92, 96, sequence=7),
        op(AUTOGRAD, 200, 260, thread="autograd", sequence=6, forward_thread=1),
        op("aten::mm", 205, 255, thread="autograd"),
        op(AUTOGRAD, 260, 300, thread="autograd", sequence=5, forward_thread=1),
        op("aten::zero_", 400, 440), *more,
    ]  # fmt: skip


def test_on_a_cpu_operators_belong_to_the_innermost_module_and_backward_to_the_operators() -> None:
    found = rows_of(trace(*pass_of()))
    assert {name: (row.forward_ns, row.backward_ns) for name, row in found.items()} == {
        "b": (30, 60),
        "a": (20, 40),
        "model": (4, 0),
    }
    assert [row.comm_ns for row in found.values()] == [None] * 3
    assert [row.kept_bytes for row in found.values()] == [None] * 3


def test_on_a_gpu_it_is_the_work_that_was_launched_and_collectives_stand_apart() -> None:
    device = [
        launch(20, 21, 1), kernel("gemm_a", 30, 130, 1), launch(70, 71, 2), kernel("gemm_b", 130, 150, 2),
        launch(210, 211, 3, thread="autograd"), kernel("gemm_b_backward", 300, 500, 3),
        launch(270, 271, 4, thread="autograd"), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 500, 570, 4, stream=8),
    ]  # fmt: skip
    found = rows_of(trace(*pass_of(*device)))
    assert {name: (row.forward_ns, row.backward_ns, row.comm_ns) for name, row in found.items()} == {
        "b": (20, 200, 0),
        "a": (100, 0, 70),
        "model": (0, 0, 0),
    }


def test_memory_is_what_a_module_allocates_less_what_it_releases() -> None:
    times, sizes = [15, 60, 80, 95], [100, 50, -20, -30]
    memory = MemoryInstants(
        ts_ns=np.array(times), size_bytes=np.array(sizes), allocated_bytes=np.cumsum(sizes), reserved_bytes=np.zeros(4, int),
        device_type=np.zeros(4, np.int32), device=np.full(4, -1, np.int32),
    )  # fmt: skip
    found = rows_of(trace(*pass_of(), memory=memory))
    assert {name: row.kept_bytes for name, row in found.items()} == {"a": 100, "b": 30, "model": -30}


def test_without_ranges_of_modules_the_reason_names_the_option() -> None:
    made = trace(op("aten::mm", 0, 5))
    activity = activity_of(made.events)
    found = module_rows(made, activity, launches_of(made.events, activity.indices))
    assert isinstance(found, Unavailable)
    assert "--modules" in found.reason
