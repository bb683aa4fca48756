"""A pipeline's profile: hand-made and simulated steps with known parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.predict.pipeline import StageTime, balanced_split, pipeline_orders, simulate
from stepscope.records.mesh import PipelineLayout, PipelineSpan
from stepscope.results.pipeline import MeasuredPipeline

MS = 1_000_000


def measured(layout: PipelineLayout, times: list[StageTime], split: tuple[int, ...]) -> MeasuredPipeline:
    """Three equal steps of the simulated schedule."""
    spans = simulate(layout, times, meeting=True).spans()
    return MeasuredPipeline(layout=layout, split=split, steps=(spans,) * 3, costs=(1.0,) * sum(split), meeting=True)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zbv", 2)]
)
def test_parts_of_stages_sum_to_the_step_and_the_simulation_repeats_it(schedule: str, chunks: int) -> None:
    layout = PipelineLayout(schedule=schedule, ranks=3, micro_batches=6, chunks=chunks)
    times = [
        StageTime(forward_ns=(10 + s) * MS, backward_ns=20 * MS, weight_ns=8 * MS, send_ns=2 * MS, send_back_ns=3 * MS)
        for s in range(layout.stages)
    ]
    found = measured(layout, times, (1,) * layout.stages)
    line = simulate(layout, times, meeting=True)
    assert found.step_ns == pytest.approx(line.step_ns)
    for rank in range(3):
        own = [stage for stage in found.stages if stage.rank == rank]
        parts = sum(s.busy_ns + s.send_ns + s.receive_ns + s.idle_ns for s in own)
        assert parts == pytest.approx(found.step_ns)
        assert sum(s.busy_ns for s in own) == pytest.approx(line.busy_ns[rank])
    assert found.bubble.value == pytest.approx(line.bubble)
    assert found.simulated_bubble == pytest.approx(line.bubble, abs=0.01)
    for stage, (seen, given) in enumerate(zip(found.times, times, strict=True)):
        assert (seen.forward_ns, seen.backward_ns) == pytest.approx((given.forward_ns, given.backward_ns)), stage


def test_micro_batches_that_take_unequal_times_belong_to_the_simulated_bubble_and_gaps_between_them_do_not() -> None:
    layout = PipelineLayout(schedule="1f1b", ranks=2, micro_batches=8)
    usual = StageTime(forward_ns=10 * MS, backward_ns=20 * MS)
    took = [
        [usual.of(kind) * (1.6 if (number + rank) % 3 == 0 else 1.0) for number, (kind, _, _) in enumerate(order)]
        for rank, order in enumerate(pipeline_orders(layout))
    ]
    line = simulate(layout, [usual], took_ns=took)
    even = simulate(layout, [usual])
    assert line.bubble > even.bubble + 0.05
    found = MeasuredPipeline(layout=layout, split=(1, 1), steps=(line.spans(),) * 3, costs=(1.0, 1.0), meeting=True)
    assert found.simulated_bubble == pytest.approx(line.bubble)
    assert found.simulated_bubble == pytest.approx(found.bubble.value)

    def slower(span: PipelineSpan) -> PipelineSpan:  # a rank that starts each computation late
        late = 5 * MS * (1 + sum(s.rank == span.rank and s.start_ns < span.start_ns for s in line.spans()))
        return replace(span, start_ns=span.start_ns + late, end_ns=span.end_ns + late)

    delayed = replace(found, steps=(tuple(slower(span) for span in line.spans()),))
    assert delayed.bubble.value > delayed.simulated_bubble + 0.05


def test_waiting_is_idle_until_the_output_exists_then_receiving_and_a_rank_that_needs_nothing_sends() -> None:
    layout = PipelineLayout(schedule="gpipe", ranks=2, micro_batches=2)

    def span(rank: int, kind: str, micro_batch: int, start: int, end: int) -> PipelineSpan:
        return PipelineSpan(rank=rank, stage=rank, micro_batch=micro_batch, kind=kind, start_ns=start, end_ns=end)

    step = (
        span(0, "F", 0, 0, 10), span(0, "F", 1, 14, 24), span(1, "F", 0, 13, 23), span(1, "F", 1, 27, 37),
        span(1, "B", 0, 37, 57), span(1, "B", 1, 57, 77), span(0, "B", 0, 60, 80), span(0, "B", 1, 80, 100),
    )  # fmt: skip
    first, last = MeasuredPipeline(layout=layout, split=(1, 1), steps=(step,), costs=(1.0, 1.0), meeting=True).stages
    assert (first.send_ns, first.receive_ns, first.idle_ns) == (4, 3, 57 - 24)
    assert (last.send_ns, last.receive_ns, last.idle_ns) == (0, 3 + 3, 10 + 1 + 23)


def test_the_split_that_evens_stages_out_and_a_step_is_the_same_whatever_its_zero() -> None:
    layout = PipelineLayout(schedule="1f1b", ranks=2, micro_batches=8)
    slow, fast = (StageTime(forward_ns=n * MS, backward_ns=2 * n * MS) for n in (6, 2))
    found = measured(layout, [slow, fast], (6, 2))
    assert found.imbalance == pytest.approx(1.5)
    split, step = found.balanced
    assert split == (4, 4)
    assert step == pytest.approx(12 * (8 + 1) / (18 * 8))
    assert measured(layout, [slow, slow], (4, 4)).balanced == ((4, 4), 1.0)
    layout = PipelineLayout(schedule="1f1b", ranks=2, micro_batches=4)
    found = measured(layout, [StageTime(forward_ns=10 * MS, backward_ns=20 * MS)], (1, 1))
    assert found.typical == found.steps[0]
    assert replace(found).step_ns == 30 * MS * 5


@pytest.mark.parametrize(
    ("costs", "stages", "split"),
    [([1, 1, 1, 1], 2, (2, 2)), ([4, 1, 1, 1], 2, (1, 3)), ([1, 1, 1, 5], 3, (1, 2, 1)), ([3], 1, (1,))],
)  # fmt: skip
def test_balanced_splits(costs: list[float], stages: int, split: tuple[int, ...]) -> None:
    found = balanced_split(costs, stages)
    assert len(found) == stages
    assert sum(found) == len(costs)
    assert _dearest(costs, found) == _dearest(costs, split)


def _dearest(costs: list[float], split: tuple[int, ...]) -> float:
    left = list(costs)
    return max(sum(left.pop(0) for _ in range(n)) for n in split)
