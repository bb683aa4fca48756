"""Phases of a step from the job's own ranges, and what counts as computation on CPU traces; times in ns by hand.

What the training thread of a CPU rank does: computing, loading, or blocked until a collective of gloo is done.
"""

from __future__ import annotations

import pytest
from tests.hand_events import Row, mark, op, trace

from stepscope.records.trace_budget import PhaseBudget
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted
from stepscope.traces.steps import phase_budgets


def _phases(made: RankTrace, regions: dict[str, str] | None = None) -> dict[str, PhaseBudget]:
    view = RankView(made, Wanted(regions=tuple((regions or {}).items())))
    return {row.phase: row for row in phase_budgets(view)}


def test_a_range_is_the_phase_that_the_user_states() -> None:
    made = trace(
        mark("my_stuff/1", 0, 100), op("aten::mm", 0, 100), mark("forward", 100, 150), op("aten::mm", 100, 150)
    )
    assert _phases(made)["other"].compute_ns == 100
    assert _phases(made, {"my_stuff": "backward"})["backward"].compute_ns == 100


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
    assert found.budget.parts.window_ns == sum(s.parts.window_ns for s in found.steps) == 2 * (loaded + 600)
    assert found.budget.parts.idle_ns == sum(s.parts.idle_ns for s in found.steps)
    assert sum(i.idle_ns for i in found.idle if i.cause == "data") == 2 * loaded


def test_ranks_that_wait_for_shards_are_bound_by_communication() -> None:
    rows = [mark("ProfilerStep#1", 0, 160), *reduced_in_backward()]
    verdict = combine([analyse(trace(*rows), Wanted())]).verdicts[0].verdict
    assert verdict.kind == "communication"
