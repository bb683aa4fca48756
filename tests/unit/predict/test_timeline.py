"""The bucket timeline: hand-made steps with known answers, and the steps measured once on a shaped link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.overlap import Transport, transport_of
from stepscope.predict.timeline import best_bucket, slowest_of, step_timeline
from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.records.prediction import BackwardProfile, ReadyGradient
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY as WORKLOADS

MS = 1_000_000
SETTING = Setting(device="cpu", backend="gloo", world_size=2, precision="fp32", optimizer="sgd")
ONE_LANE, TWO_LANES = Transport(lanes=1), Transport(lanes=2)


def profile(*ready_ms: float, backward_ms: float = 40, **changes: object) -> BackwardProfile:
    """Parameters a, b, c, ... ready at these times; 20 ms before the backward pass, 5 ms after."""
    fields: dict[str, object] = {
        "clock": "perf_counter", "steps": 5, "micro_batch": 32, "data_wait_ns": 2 * MS, "forward_ns": 18 * MS,
        "earlier_backward_ns": 0, "backward_ns": round(backward_ms * MS), "optimizer_ns": 4 * MS, "other_ns": 1 * MS,
        "ready": tuple(
            ReadyGradient(name=chr(ord("a") + i), ready_ns=round(at * MS)) for i, at in enumerate(ready_ms)
        ),
    }  # fmt: skip
    return BackwardProfile(**(fields | changes))  # type: ignore[arg-type]


def op(*members: str, kib: int = 1024, phase: str = "backward") -> CommOp:
    return CommOp(op="all_reduce", numel=kib * 256, dtype="float32", phase=phase, members=members)


def constant(ms: float) -> Callable[[str, int], float]:
    """Every collective takes ``ms`` of latency: the same for each size."""
    return lambda _, size: ms * MS if size else 0.0


def wire(ms_per_mib: float) -> Callable[[str, int], float]:
    return lambda _, size: size / 2**20 * ms_per_mib * MS


def test_a_bucket_is_ready_with_its_last_gradient_and_the_tail_is_what_backward_does_not_cover() -> None:
    line = step_timeline(profile(10, 20, 40), [op("a", "b"), op("c")], constant(30), transport=ONE_LANE)
    first, second = line.buckets
    assert (first.ready_ns, first.launch_ns, first.start_ns, first.end_ns) == (
        20 * MS, 20 * MS, 20 * MS, 50 * MS,
    )  # fmt: skip
    assert (second.ready_ns, second.launch_ns, second.start_ns, second.end_ns) == (
        40 * MS, 40 * MS, 50 * MS, 80 * MS,
    )  # fmt: skip
    assert (first.exposed_ns, second.exposed_ns) == (10 * MS, 30 * MS)
    assert line.exposed_ns == 40 * MS
    assert line.step_ns == (20 + 40 + 40 + 5) * MS
    assert line.comm_ns == 60 * MS
    assert line.hidden_fraction == pytest.approx(1 / 3)
    assert line.overlap_efficiency == pytest.approx((65 + 60 - 105) / 60)


def test_blocking_collectives_after_backward_follow_each_other_and_hide_nothing() -> None:
    plan = [op(name, phase="after_backward") for name in "abc"]
    line = step_timeline(profile(10, 20, 40), plan, constant(7), transport=TWO_LANES)
    assert [(b.start_ns / MS, b.end_ns / MS) for b in line.buckets] == [(40, 47), (47, 54), (54, 61)]
    assert [b.launch_ns for b in line.buckets] == [b.start_ns for b in line.buckets]
    assert line.exposed_ns == line.comm_ns == 21 * MS
    assert line.hidden_fraction == 0


def test_a_collective_waits_for_those_before_it_even_when_its_gradients_are_ready() -> None:
    line = step_timeline(profile(5, 30), [op("b"), op("a")], constant(1), transport=ONE_LANE)
    assert [b.launch_ns for b in line.buckets] == [30 * MS, 30 * MS]
    assert [b.ready_ns for b in line.buckets] == [30 * MS, 5 * MS]


def test_two_lanes_share_the_wire() -> None:
    line = step_timeline(profile(0, 0), [op("a"), op("b")], wire(30), transport=TWO_LANES)
    assert [b.end_ns for b in line.buckets] == [60 * MS, 60 * MS]
    assert {b.lane for b in line.buckets} == {0, 1}
    one = step_timeline(profile(0, 0), [op("a"), op("b")], wire(30), transport=ONE_LANE)
    assert [b.end_ns for b in one.buckets] == [30 * MS, 60 * MS]


def test_calls_that_leave_some_of_the_link_free_share_it() -> None:
    half = step_timeline(profile(0, 0), [op("a"), op("b")], wire(30), transport=TWO_LANES, link=lambda _: 0.5)
    assert [b.end_ns for b in half.buckets] == [30 * MS, 30 * MS]
    most = step_timeline(profile(0, 0), [op("a"), op("b")], wire(30), transport=TWO_LANES, link=lambda _: 0.75)
    assert [b.end_ns for b in most.buckets] == [45 * MS, 45 * MS]


def test_broadcasts_that_are_called_together_overlap_each_other() -> None:
    plan = [sharded("broadcast", "optimizer", name, blocking=False) for name in "abcd"]
    line = step_timeline(profile(20, 40), plan, wire(7), transport=TWO_LANES, link=lambda _: 0.5)
    assert line.after_ns == (5 + 2 * 7) * MS
    assert line.waits_ns == 2 * 7 * MS
    assert line.step_ns == (20 + 40 + 5 + 2 * 7) * MS


def test_two_lanes_hide_each_others_latency() -> None:
    both = [op("a", kib=1), op("b", kib=1), op("c", kib=64 * 1024)]  # the large one shows that a byte costs nothing
    line = step_timeline(profile(0, 0, 0), both, constant(10), transport=TWO_LANES)
    assert line.buckets[0].end_ns == line.buckets[1].end_ns
    assert line.buckets[1].end_ns < 10.1 * MS


def test_slowdowns_stretch_backward_and_communication_while_both_run() -> None:
    slow = Transport(lanes=1, compute_slowdown=1.25, comm_slowdown=1.5)
    line = step_timeline(profile(20, 40), [op("a")], constant(30), transport=slow)
    # from 20 ms on 20 ms of work take 25; by then 25 / 1.5 of the 30 ms are sent
    assert line.backward_ns == 45 * MS
    assert line.backward_alone_ns == 40 * MS
    assert line.exposed_ns == pytest.approx((30 - 25 / 1.5) * MS, abs=2)
    assert line.step_ns == pytest.approx((20 + 45 + 30 - 25 / 1.5 + 5) * MS, abs=2)


def test_starting_a_collective_stops_computation_where_no_core_is_spare() -> None:
    stalling = Transport(lanes=1, startup_stalls=True)
    line = step_timeline(profile(10, 20, 40), [op("a"), op("b")], constant(0.3), transport=stalling)
    assert line.backward_ns == 40.6 * MS  # two starts of 0.3 ms each
    assert line.backward_alone_ns == 40 * MS
    assert [b.ready_ns for b in line.buckets] == [10 * MS, 20.3 * MS]
    far = step_timeline(profile(10, 20, 40), [op("a"), op("b")], constant(3), transport=stalling)
    assert far.backward_ns == 40.9 * MS  # the rest of the 3 ms passes on the network
    after = step_timeline(profile(10, 40), [op("b", phase="after_backward")], constant(3), transport=stalling)
    assert after.backward_ns == 40 * MS  # nothing computes any more


def test_a_step_without_communication_is_its_computation() -> None:
    line = step_timeline(profile(10, 40), [], constant(1), transport=ONE_LANE)
    assert line.step_ns == line.compute_ns == profile(10, 40).step_ns == 65 * MS
    assert line.hidden_fraction is None
    assert line.overlap_efficiency is None


def test_an_empty_part_of_a_bucket_goes_with_the_part_that_follows() -> None:
    line = step_timeline(profile(10, 40), [op(kib=0), op("a"), op("b")], constant(1), transport=ONE_LANE)
    assert [b.ready_ns for b in line.buckets] == [10 * MS, 10 * MS, 40 * MS]


def test_a_parameter_that_backward_does_not_use_goes_at_its_end() -> None:
    line = step_timeline(profile(10, unused=("z",)), [op("a", "z")], constant(1), transport=ONE_LANE)
    assert line.buckets[0].ready_ns == 40 * MS


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(DataError, match="gradient of 'other'"):
        step_timeline(profile(10), [op("other")], constant(1), transport=ONE_LANE)


def test_a_gradient_is_ready_when_the_last_rank_has_it() -> None:
    quick, slow = profile(10, 30), profile(12, 33, backward_ms=44, forward_ns=24 * MS, optimizer_ns=6 * MS)
    joint = slowest_of([quick, slow])
    assert joint.before_ns == 26 * MS
    assert [r.ready_ns for r in joint.ready] == [12 * MS, 33 * MS]
    assert joint.backward_ns == 44 * MS
    assert joint.after_ns == 7 * MS
    late_start = profile(30, 39, forward_ns=10 * MS)  # begins 14 ms before the other: 30 - 14 comes after 12
    assert [r.ready_ns for r in slowest_of([slow, late_start]).ready] == [16 * MS, 33 * MS]


def test_ranks_without_or_with_different_profiles_are_refused() -> None:
    with pytest.raises(DataError, match="no rank left a backward profile"):
        slowest_of([])
    with pytest.raises(DataError, match="different parameters"):
        slowest_of([profile(1, 2), profile(1)])


# What was measured on two hosts at 2 Gbit (tbf), 8 x Linear(1024) + ReLU, batch 256, 2 ranks, ms per step, two runs.
MEASURED_MS = {"none": 122.5, "naive": 284.8, "interleaved": 209.9, 25: 258.4, 8: 220.5, 4: 204.9, 2: 205.2}
RATE = 2e9 / 8 * 0.956  # bytes per second that headers leave
ALPHA_MS = 0.3  # of each of the two steps of gloo's all_reduce


def shaped(_: str, size_bytes: int) -> float:
    return 2 * ALPHA_MS * MS + size_bytes / RATE * 1e9


def eight_layers() -> tuple[ModelFacts, BackwardProfile]:
    """The model of the measurement, backward twice as long as forward and the same for each layer."""
    family = WORKLOADS.load("deep_mlp")
    options = family.options(depth=8, width=1024, bias=True)
    facts = family.facts(options, family.needs(options), "float32")
    forward = round((MEASURED_MS["none"] - 6) / 3 * MS)
    ready = tuple(
        ReadyGradient(name=facts.parameters[index].name, ready_ns=2 * forward * (place // 2 + 1) // 8)
        for place, index in enumerate(facts.ready_order)
    )
    return facts, profile(
        ready=ready, data_wait_ns=0, forward_ns=forward, backward_ns=2 * forward, optimizer_ns=6 * MS, other_ns=0,
    )  # fmt: skip


def predicted_ms(key: str, **options: float) -> float:
    facts, measured = eight_layers()
    kind = STRATEGIES.load(key)
    plan = kind.comm_plan(facts, SETTING, kind.options(**options))
    return step_timeline(measured, plan, shaped, transport=transport_of("gloo")).step_ns / MS


def test_predictions_lie_within_8_percent_of_what_was_measured_on_a_shaped_link() -> None:
    assert predicted_ms("naive") == pytest.approx(MEASURED_MS["naive"], rel=0.08)
    assert predicted_ms("interleaved") == pytest.approx(MEASURED_MS["interleaved"], rel=0.08)
    for cap in (25, 8, 4, 2):
        assert predicted_ms("ddp", bucket_cap_mb=cap) == pytest.approx(MEASURED_MS[cap], rel=0.08)


def test_the_gain_of_tuned_buckets_is_predicted_within_10_points() -> None:
    gain = predicted_ms("naive") / predicted_ms("ddp", bucket_cap_mb=4)
    assert gain == pytest.approx(MEASURED_MS["naive"] / MEASURED_MS[4], abs=0.1)
    over_25 = predicted_ms("ddp", bucket_cap_mb=25) / predicted_ms("ddp", bucket_cap_mb=4)
    assert over_25 == pytest.approx(MEASURED_MS[25] / MEASURED_MS[4], abs=0.1)


def test_sizes_that_make_the_same_buckets_count_once_and_the_best_is_named() -> None:
    facts, measured = eight_layers()
    choice = best_bucket(measured, facts, SETTING, shaped)
    assert [c.bucket_caps_mb for c in choice.candidates] == [(1, 2, 4), (8,), (16,), (25,)]
    assert choice.bucket_cap_mb == 4
    assert len(choice.chosen.timeline.buckets) == 8
    assert choice.gain_over_naive == pytest.approx(choice.naive.step_ns / choice.chosen.timeline.step_ns - 1)
    assert choice.gain_over_default > 0.15


def test_on_a_slow_start_up_large_buckets_win() -> None:
    facts, measured = eight_layers()
    choice = best_bucket(measured, facts, SETTING, lambda _, size: 60 * MS + size / 1e11 * 1e9, strategy="bucketed")
    assert choice.bucket_cap_mb == 25


def test_on_an_endless_wire_all_sizes_tie_and_the_largest_is_named() -> None:
    facts, measured = eight_layers()
    choice = best_bucket(measured, facts, SETTING, lambda _, __: 0.0)
    assert choice.bucket_cap_mb == 25
    assert choice.gain_over_naive == 0


def test_other_options_of_the_strategy_are_kept() -> None:
    facts, measured = eight_layers()
    choice = best_bucket(measured, facts, SETTING, shaped, options={"hook": "fp16", "bucket_cap_mb": 99})
    for candidate in choice.candidates:
        assert candidate.timeline.comm_bytes == facts.gradient_bytes // 2
    assert choice.naive.comm_bytes == facts.gradient_bytes


def test_a_strategy_without_buckets_and_an_empty_choice_are_refused() -> None:
    facts, measured = eight_layers()
    with pytest.raises(UsageError, match="naive has no buckets"):
        best_bucket(measured, facts, SETTING, shaped, strategy="naive")
    with pytest.raises(UsageError, match="no bucket size"):
        best_bucket(measured, facts, SETTING, shaped, candidates_mb=())


def test_earlier_micro_steps_come_before_the_backward_pass_that_communicates() -> None:
    alone, accumulated = profile(10, 40), replace(profile(10, 40), earlier_backward_ns=40 * MS)
    lines = [step_timeline(p, [op("a")], constant(50), transport=ONE_LANE) for p in (alone, accumulated)]
    assert lines[1].step_ns - lines[0].step_ns == 40 * MS
    assert lines[0].buckets == lines[1].buckets


def test_naive_may_have_a_profile_of_its_own() -> None:
    facts, measured = eight_layers()
    slower = replace(measured, backward_ns=measured.backward_ns + 10 * MS)
    one, two = (best_bucket(measured, facts, SETTING, shaped, naive_profile=p) for p in (None, slower))
    assert two.naive.step_ns - one.naive.step_ns == 10 * MS
    assert two.candidates == one.candidates


def sharded(name: str, phase: str, *members: str, blocking: bool) -> CommOp:
    return CommOp(op=name, numel=1 << 18, dtype="float32", phase=phase, members=members, blocking=blocking)


@pytest.mark.parametrize(
    ("blocking", "before", "exposed", "after"),
    [
        (True, 20 + 2 * 7, 3 * 7, 5 + 7),  # all of them stand in line with computation
        # A unit ahead: only the first gather of the forward pass, the last gradients and the broadcast wait.
        (False, 20 + 7, 7, 5 + 7),
    ],
)
def test_sharded_parameters_are_gathered_in_both_passes_and_broadcasts_follow_the_optimizer(
    blocking: bool, before: float, exposed: float, after: float
) -> None:
    plan = [
        sharded("all_gather", "forward", "a", blocking=blocking),
        sharded("all_gather", "forward", "b", blocking=blocking),
        sharded("all_gather", "backward", "a", blocking=blocking),
        sharded("reduce_scatter", "backward", "a", blocking=blocking),
        sharded("reduce_scatter", "backward", "b", blocking=blocking),
        sharded("broadcast", "optimizer", "a", blocking=True),
    ]
    line = step_timeline(profile(20, 40), plan, constant(7), transport=ONE_LANE)
    assert (line.before_ns, line.exposed_ns, line.after_ns) == (before * MS, exposed * MS, after * MS)
    assert line.backward_ns == 40 * MS
    assert line.compute_ns == (20 + 40 + 5) * MS
    assert line.step_ns == (before + 40 + exposed + after) * MS
