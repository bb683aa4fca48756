"""What the training thread of a CPU rank does: computing, loading, or blocked until a collective of gloo is done."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, mark, op, trace

from stepscope.traces.activity import activity_of, parts_within
from stepscope.traces.job import combine
from stepscope.traces.load import Wanted
from stepscope.traces.rank_pass import analyse


def reduced_in_backward(*, node: str = "RegisterPostBackwardFunctionBackward") -> list[Row]:
    """A node of autograd: 20 of mm, then FSDP's hook that launches a reduce-scatter and waits for it until 150."""
    return [
        op("autograd::engine::evaluate_function: AddmmBackward0", 0, 30), op("aten::mm", 5, 25),
        op(f"autograd::engine::evaluate_function: {node}", 30, 160), op(node, 31, 159),
        mark("FSDP::post_backward_reduce (0)", 32, 158),
        op("aten::_chunk_cat", 34, 40), op("c10d::_reduce_scatter_base_", 42, 48),
        mark("gloo:all_reduce", 60, 150, thread="gloo"), op("aten::div_", 140, 149, thread="gloo"),
        op("aten::copy_", 152, 156),
    ]  # fmt: skip


def test_a_wait_inside_a_node_of_autograd_is_exposed_communication() -> None:
    parts = parts_within(activity_of(trace(*reduced_in_backward()).events), low=0, high=160)
    # Computes in the first node, before the call (30 to 42) and from the next operator on; what gloo's own thread copies
    # and divides is its transfer.
    assert parts.compute_ns == 30 + 12 + 8
    assert (parts.exposed_comm_ns, parts.overlap_ns) == (152 - 48, 0)
    assert parts.idle_ns == 48 - 42  # the call itself


def test_operators_that_compute_are_no_wait_for_what_ends_meanwhile() -> None:
    rows = [
        op("c10d::allreduce_", 0, 2), mark("gloo:all_reduce", 5, 50, thread="gloo"),
        op("autograd::engine::evaluate_function: AddmmBackward0", 3, 90), op("aten::mm", 3, 90), op("aten::t", 4, 6),
    ]  # fmt: skip
    parts = parts_within(activity_of(trace(*rows).events), low=0, high=90)
    assert (parts.compute_ns, parts.exposed_comm_ns, parts.overlap_ns) == (87, 0, 45)


def test_compiled_code_computes_in_its_own_time() -> None:
    """Its kernels are not recorded: what ends while it runs was not waited for."""
    compiled = [r for r in reduced_in_backward(node="CompiledFunctionBackward") if "engine" not in r.name]
    parts = parts_within(activity_of(trace(*compiled).events), low=0, high=160)
    assert parts.overlap_ns == 90


@pytest.mark.parametrize("loaded", [400, 0])
def test_the_window_of_a_cpu_rank_is_that_of_its_marks(loaded: int) -> None:
    """Two steps; each loads first. The first one's loading lies before the first operator of the trace."""
    rows = []
    for step in range(2):
        at = step * (loaded + 600)
        rows += [
            mark(f"ProfilerStep#{step}", at, at + loaded + 600),
            op("aten::mm", at + loaded + 50, at + loaded + 550),
        ]
        rows += [mark("enumerate(DataLoader)#_SingleProcess", at, at + loaded)] if loaded else []
    found = analyse(trace(*rows), Wanted())
    assert found.budget is not None
    assert found.budget.parts.window_ns == sum(s.parts.window_ns for s in found.steps) == 2 * (loaded + 600)
    assert found.budget.parts.idle_ns == sum(s.parts.idle_ns for s in found.steps)
    assert sum(i.idle_ns for i in found.idle if i.cause == "data") == 2 * loaded


def test_ranks_that_wait_for_shards_are_bound_by_communication() -> None:
    rows = [mark("ProfilerStep#1", 0, 160), *reduced_in_backward()]
    verdict = combine([analyse(trace(*rows), Wanted())]).verdicts[0].verdict
    assert verdict.kind == "communication"
