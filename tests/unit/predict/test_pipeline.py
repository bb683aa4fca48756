"""The simulated pipeline: closed formulas, hand-made steps, and what holds for every pipeline."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from stepscope.core.errors import UsageError
from stepscope.predict.pipeline import PipelineTimeline, StageTime, pipeline_orders, simulate
from stepscope.records.mesh import PipelineLayout

EVEN = [StageTime(forward_ns=10, backward_ns=20, weight_ns=10)]
CHUNKS = {"gpipe": (1,), "1f1b": (1,), "interleaved": (2, 3), "zero_bubble": (1, 2), "zbv": (2,)}


def layout(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> PipelineLayout:
    return PipelineLayout(schedule=schedule, ranks=ranks, micro_batches=micro_batches, chunks=chunks)


@st.composite
def layouts(draw: st.DrawFn) -> PipelineLayout:
    schedule = draw(st.sampled_from(sorted(CHUNKS)))
    ranks = draw(st.integers(1, 5))
    rounds, each = draw(st.integers(1, 3)), draw(st.integers(1, 2 * ranks - 1))
    micro = each if rounds == 1 else rounds * ranks
    return layout(schedule, ranks, micro, draw(st.sampled_from(CHUNKS[schedule])))


times = st.builds(
    StageTime,
    forward_ns=st.integers(1, 100), backward_ns=st.integers(2, 200), weight_ns=st.just(1.0) | st.none(),
    send_ns=st.integers(0, 50), send_back_ns=st.integers(0, 50),
)  # fmt: skip


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[PipelineLayout, list[StageTime], PipelineTimeline]:
    where = draw(layouts())
    of = draw(st.lists(times, min_size=where.stages, max_size=where.stages))
    return where, of, simulate(where, of)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 8, 21])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_even_stages_and_free_messages_give_the_formula(schedule: str, ranks: int, micro_batches: int) -> None:
    where = layout(schedule, ranks, micro_batches)
    line = simulate(where, EVEN)
    assert line.step_ns == 30 * (micro_batches + ranks - 1)
    assert line.bubbles == pytest.approx([where.bubble] * ranks)
    assert where.bubble == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 12)])
def test_interleaved_divides_the_bubble_by_the_chunks(ranks: int, micro_batches: int, chunks: int) -> None:
    where = layout("interleaved", ranks, micro_batches, chunks)
    line = simulate(where, EVEN)
    assert line.step_ns == 30 * (chunks * micro_batches + ranks - 1)
    assert line.bubble == pytest.approx((ranks - 1) / (chunks * micro_batches + ranks - 1)) == where.bubble


@pytest.mark.parametrize(("schedule", "chunks"), [("zero_bubble", 1), ("zero_bubble", 2), ("zbv", 2)])
def test_zero_bubble_leaves_the_time_in_which_the_pipeline_fills(schedule: str, chunks: int) -> None:
    """Qi et al., ICLR 2024, section 2: ZB-H1 waits (p - 1) (F + I - W) in all."""
    line = simulate(layout(schedule, 4, 16, chunks), EVEN)
    assert line.step_ns - max(line.busy_ns) == 3 * 10
    assert line.bubble == pytest.approx(line.layout.bubble)


@given(pipelines())
def test_gpipe_is_two_flow_shops(pipeline: tuple[PipelineLayout, list[StageTime], PipelineTimeline]) -> None:
    """m equal jobs through machines (stages and links) take the sum of their times and (m - 1) x the longest."""
    where, of, _ = pipeline
    where = layout("gpipe", where.stages, where.micro_batches)
    forward = [t.forward_ns for t in of] + [t.send_ns for t in of[:-1]]
    back = [t.backward_ns for t in of] + [t.send_back_ns for t in of[1:]]
    closed = sum(sum(each) + (where.micro_batches - 1) * max(each) for each in (forward, back))
    assert simulate(where, of).step_ns == pytest.approx(closed)


@examples(60)
@given(pipelines())
def test_every_computation_follows_what_it_needs(
    pipeline: tuple[PipelineLayout, list[StageTime], PipelineTimeline],
) -> None:
    where, of, line = pipeline
    ends = {
        (kind, stage, i): (start, end)
        for order, starts, stops in zip(pipeline_orders(where), line.starts_ns, line.ends_ns, strict=True)
        for (kind, stage, i), start, end in zip(order, starts, stops, strict=True)
    }
    halves = "IW" if where.schedule in ("zero_bubble", "zbv") else "B"
    wanted = {(k, s, i) for k in "F" + halves for s in range(where.stages) for i in range(where.micro_batches)}
    assert set(ends) == wanted
    for (kind, stage, i), (start, end) in ends.items():
        assert end - start == pytest.approx(of[stage].of(kind))
        before = {"F": ("F", stage - 1, i), "W": ("I", stage, i)}.get(kind, (kind, stage + 1, i))
        if before in ends:
            apart = kind != "W" and where.rank_of_stage[before[1]] != where.rank_of_stage[stage]
            message = (of[before[1]].send_ns if kind == "F" else of[before[1]].send_back_ns) if apart else 0
            assert start >= ends[before][1] + message - 1e-6
        if kind != "F":
            assert start >= ends["F", stage, i][1] - 1e-6
    for starts, stops in zip(line.starts_ns, line.ends_ns, strict=True):
        assert all(end <= start for end, start in zip(stops, starts[1:], strict=False))
    assert line.step_ns >= max(line.busy_ns)


@given(pipelines(), st.integers(2, 5))
def test_slower_stages_and_messages_never_shorten_a_step(
    pipeline: tuple[PipelineLayout, list[StageTime], PipelineTimeline], factor: int
) -> None:
    where, of, line = pipeline
    slower = [StageTime(forward_ns=t.forward_ns * factor, backward_ns=t.backward_ns, weight_ns=t.weight_ns,
                        send_ns=t.send_ns * factor, send_back_ns=t.send_back_ns) for t in of]  # fmt: skip
    assert simulate(where, slower).step_ns >= line.step_ns - 1e-6


def test_a_slow_link_is_the_bottleneck_and_messages_of_one_direction_queue() -> None:
    line = simulate(layout("gpipe", 2, 3), [StageTime(forward_ns=10, backward_ns=20, send_ns=50)])
    assert line.starts_ns[1][:3] == [60, 110, 160]
    assert line.step_ns == 170 + 20 * 3 + 20


def test_a_message_that_needs_an_idle_receiver_hides_behind_nothing() -> None:
    of = [StageTime(forward_ns=10, backward_ns=20, send_ns=2, send_back_ns=2)]
    line = simulate(layout("1f1b", 2, 3), of, meeting=True)
    assert line.starts_ns == ([0, 10, 44, 64, 76, 108], [12, 22, 44, 54, 76, 86])
    beside = simulate(layout("1f1b", 2, 3), of)
    assert beside.starts_ns[1] == [12, 22, 42, 52, 76, 86], "the second one arrives while the rank computes"


def test_spans_of_a_rank_follow_each_other() -> None:
    spans = simulate(layout("1f1b", 3, 5), EVEN).spans()
    assert len(spans) == 3 * 5 * 2
    for rank in range(3):
        own = [s for s in spans if s.rank == rank]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (layout("2f2b", 2, 4), "unknown pipeline schedule '2f2b'"),
        (layout("1f1b", 2, 0), "at least 1 rank"),
        (layout("gpipe", 2, 4, 2), "one chunk a rank"),
        (layout("interleaved", 2, 4), "2 chunks a rank or more"),
        (layout("zbv", 2, 4, 3), "exactly 2 chunks"),
        (layout("interleaved", 4, 9, 2), "in 2 equal rounds, which 9 are not: choose a multiple of 4"),
    ],
)
def test_a_layout_without_a_schedule_is_refused_with_the_reason(wrong: PipelineLayout, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate(wrong, EVEN)


def test_times_of_every_stage_are_asked_for() -> None:
    with pytest.raises(UsageError, match="a pipeline of 4 stages needs the times of each, or of one for all, not 2"):
        simulate(layout("interleaved", 2, 4, 2), EVEN * 2)
