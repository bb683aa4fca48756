"""Forward pass, evaluation, and what is neither, by operators' sequence numbers; times in ns.

How often a step runs backward, what each pass reduces, and what pipeline stages wait for each other; times in ns.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hand_events import Row, mark, op, trace

from stepscope.records.trace_rules import BackwardPasses
from stepscope.records.trace_summary import RankPass
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

MODEL = 4


def forward(at: int, first: int, *, trained: bool = True) -> list[Row]:
    """Four layers of 10, each with its number; without a graph all show the next one."""
    return [
        op("aten::addmm", at + 10 * i, at + 10 * i + 10, sequence=first + i if trained else first) for i in range(MODEL)
    ]


def backward(at: int, first: int) -> list[Row]:
    return [
        op(
            "autograd::engine::evaluate_function: AddmmBackward0",
            at + 20 * i, at + 20 * i + 20, sequence=first + MODEL - 1 - i, forward_thread=1,
        )
        for i in range(MODEL)
    ]  # fmt: skip


def naive_step(at: int, first: int) -> list[Row]:
    """Forward 40, backward 80, four reductions that are divided afterwards, each shown with the next step's number."""
    rows = [mark("ProfilerStep#1", at, at + 400), *forward(at + 10, first), *backward(at + 60, first)]
    for i in range(4):
        t = at + 150 + 40 * i
        rows += [
            op("c10d::allreduce_", t, t + 2, sequence=first + MODEL),
            mark("gloo:all_reduce", t + 2, t + 30, thread="gloo"),
            op("aten::div_", t + 30, t + 38, sequence=first + MODEL),
        ]
    return [*rows, mark("Optimizer.step#SGD.step", at + 320, at + 350), op("aten::add_", at + 321, at + 349)]


def evaluated(at: int, first: int) -> list[Row]:
    """A step that evaluates twice after its optimizer's."""
    rows = [mark("ProfilerStep#2", at, at + 400), *forward(at + 10, first), *backward(at + 60, first)]
    rows += [mark("Optimizer.step#SGD.step", at + 150, at + 160)]
    return [*rows, *forward(at + 200, first + MODEL, trained=False), *forward(at + 250, first + MODEL, trained=False)]


def phases(rows: list[Row]) -> dict[str, int]:
    return {p.phase: p.compute_ns for p in analyse(trace(*rows), Wanted()).phases}


def test_gradients_that_are_divided_after_the_backward_pass_are_no_forward_pass() -> None:
    found = phases([*naive_step(0, 0), *naive_step(400, MODEL)])
    assert (found["forward"], found["backward"], found["other"]) == (80, 160, 64)


def test_naive_reductions_are_data_parallel() -> None:
    (rank,) = combine([analyse(trace(*naive_step(0, 0), *naive_step(400, MODEL)), Wanted())]).ranks
    assert [g.kind for g in rank.groups] == ["dp"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_evaluation_is_a_phase_of_its_own(wrapped: bool) -> None:
    """With DDP, its forward annotation stands around both."""
    rows = [*naive_step(0, 0), *evaluated(400, MODEL)]
    if wrapped:
        rows += [mark("DistributedDataParallel.forward", t, t + 40) for t in (10, 410, 600, 650)]
    found = phases(rows)
    assert (found["evaluation"], found["forward"]) == (80, 80)


def test_layers_that_are_not_trained_are_no_evaluation() -> None:
    """A frozen part runs before the trained one in every step."""
    rows: list[Row] = []
    for n in range(3):
        at = 400 * n
        rows += [mark(f"ProfilerStep#{n}", at, at + 400), *forward(at + 5, MODEL * n, trained=False)]
        rows += [*forward(at + 50, MODEL * n), *backward(at + 100, MODEL * n)]
    assert phases(rows)["evaluation"] == 0
    assert phases(rows)["forward"] == 3 * 80


def test_a_product_before_the_forward_pass_is_no_evaluation() -> None:
    rows = [*naive_step(0, 0), op("aten::mm", 360, 390)]
    assert phases(rows)["evaluation"] == 0


def micro_step(at: int, first: int, *, reduced: int) -> list[Row]:
    """Two layers forward (20) and backward (40); the backward pass launches ``reduced`` reductions."""
    rows = [op("aten::addmm", at + 10 * i, at + 10 * i + 10, sequence=first + i) for i in range(2)]
    for i in range(2):
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        begin = at + 20 + 20 * i
        rows.append(op(node, begin, begin + 20, sequence=first + 1 - i, forward_thread=1))
    for i in range(reduced):
        begin = at + 60 + 10 * i
        rows += [op("c10d::allreduce_", begin, begin + 2), mark("gloo:all_reduce", begin + 2, begin + 9, thread="gloo")]
    return rows


def passes(*reduced: int, marked: str = "whole") -> BackwardPasses:
    """Micro-steps of 100 with so many reductions each, then the optimizer; one mark around all, or one around each."""
    rows: list[Row] = []
    for n, count in enumerate(reduced):
        rows += micro_step(100 * n, 2 * n, reduced=count)
        rows += [mark(f"ProfilerStep#{n}", 100 * n, 100 * (n + 1))] if marked == "each" else []
    end = 100 * len(reduced)
    rows += [mark("ProfilerStep#0", 0, end)] if marked == "whole" else []
    rows += [mark("Optimizer.step#SGD.step", end - 8, end - 2)]
    return analyse(trace(*rows), Wanted()).backward_passes


def test_every_backward_pass_counts_with_its_own_reductions() -> None:
    (step,) = passes(2, 2, 2).steps
    assert (step.backward_passes, step.optimizer_steps, step.reductions) == (3, 1, (2, 2, 2))


@pytest.mark.parametrize("marked", ["whole", "each"])
@pytest.mark.parametrize("reduced", [(2, 2, 2), (0, 0, 2), (2,), (0,)])
def test_passes_count_with_their_reductions_however_steps_are_marked(marked: str, reduced: tuple[int, ...]) -> None:
    found = passes(*reduced, marked=marked)
    assert found.per_optimizer_step == len(reduced)
    assert tuple(n for step in found.steps for n in step.reductions) == reduced


def stage(rank: int, *, waits: int, computes: int, batches: int = 4) -> RankPass:
    """One step of 100: a receive that the stage waits in, then its micro-batches."""
    rows = [mark("ProfilerStep#3", 0, 100), op("c10d::recv_", 0, 1), mark("gloo:recv", 1, 1 + waits)]
    each = computes // batches
    for i in range(batches):
        rows += [
            mark(f"Forward {i}", 20 + i * each, 20 + (i + 1) * each),
            op("aten::mm", 20 + i * each, 20 + (i + 1) * each),
        ]
    found = analyse(trace(*rows, rank=rank), Wanted())
    return replace(found, facts=replace(found.facts, world_size=2))


def test_the_bubble_is_measured_beside_that_of_equal_stages() -> None:
    bubble = combine([stage(0, waits=15, computes=60), stage(1, waits=5, computes=72)]).bubble
    assert (bubble.stages, bubble.micro_batches, bubble.ideal) == (2, 4, 1 / 5)
    assert [s.bubble for s in bubble.shares] == [0.15, 0.05]
    assert bubble.bubble == pytest.approx(0.10)
    assert (bubble.limiting_rank, bubble.slowest_over_mean) == (1, pytest.approx(72 / 66))


def test_one_stage_alone_shows_no_bubble_of_the_pipeline() -> None:
    alone = combine([stage(0, waits=15, computes=60)])
    assert alone.bubble is None
    assert alone.ranks[0].stage_waits.steps[0].receive_wait_ns == 15
