"""Would it scale: a hand-made job of 100 ms whose answers can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.collectives.choose import predict_collective
from stepscope.predict.collectives.costs import Price
from stepscope.predict.job import JobCall, MeasuredJob, gradients_between
from stepscope.predict.overlap import Transport
from stepscope.predict.prices import Links, Prices, own_prices
from stepscope.predict.scale import largest_of, predict_scale
from stepscope.predict.what_if import WhatIf
from stepscope.records.prediction import MeasuredPoint, ScaledStep

MS = 1e6
MIB = 1 << 20
BUCKETS = tuple(
    JobCall(op="all_reduce", size_bytes=10 * MIB, ready_ns=at * MS, needed_ns=90 * MS, time_ns=20 * MS)
    for at in (50, 90)
)


def a_job(**changes: Any) -> MeasuredJob:
    """Computes 100 ms, of them 10 after the last bucket; the second bucket's 20 ms are exposed."""
    fields: dict[str, Any] = {
        "name": "job", "source": "trace", "ranks": 2, "seen_ranks": 2, "nodes": 1, "backend": "gloo", "device": "CPU",
        "gpu": None, "step_ns": 120 * MS, "length_ns": 100 * MS, "compute_ns": 90 * MS, "copies_ns": 0.0,
        "input_ns": 10 * MS, "tail_ns": 10 * MS, "spread_ns": 0.0, "spread_from": 20, "spread_of": "ranks",
        "transport": Transport(lanes=1), "calls": BUCKETS, "gradients": gradients_between(BUCKETS), "global_batch": 64,
        "points": ((2, 120 * MS),),
    }  # fmt: skip
    return MeasuredJob(**(fields | changes))


def a_gpu_job(**changes: Any) -> MeasuredJob:
    return a_job(**{"gpu": "a100-sxm4-80gb", "backend": "nccl", "dtype": "bf16", "products": 0.9} | changes)


def flat(ms_per_10_mib: float, *, reach: float = 1.0) -> Prices:
    """The same for every number of ranks."""

    def of(_: str, size_bytes: int, __: int) -> Price:
        time = ms_per_10_mib * MS * size_bytes / (10 * MIB)
        return Price(time_ns=time, low_ns=time / reach, high_ns=time * reach)

    return Prices(source="paper", of=of)


def one(job: MeasuredJob, ranks: int, prices: Prices | None = None, **asked: Any) -> ScaledStep:
    prices = prices or flat(20)
    return predict_scale(job, [ranks], prices, measured=flat(20), **asked).steps[0]


@pytest.mark.parametrize(("scaling", "throughput"), [("weak", 2 * 120 / 150), ("strong", 120 / 150)])
def test_a_measured_point_has_a_throughput_over_the_measured_job(scaling: Any, throughput: float) -> None:
    found = predict_scale(a_job(), [2], flat(20), scaling=scaling)
    assert found.measured_throughput(MeasuredPoint(ranks=4, step_ns=150 * MS)) == pytest.approx(throughput)
    assert found.measured_throughput(MeasuredPoint(ranks=2, step_ns=120 * MS)) == 1.0
    assert found.measured_samples_per_s(64) == pytest.approx(found.steps[0].samples_per_s)


def test_the_measured_step_is_replayed_and_predicted_as_it_was() -> None:
    found = predict_scale(a_job(), [2], flat(20))
    assert found.replay_error == pytest.approx(0)
    (step,) = found.steps
    assert (step.step_ns, step.exposed_ns, step.throughput, step.efficiency) == pytest.approx((120 * MS, 20 * MS, 1, 1))
    assert step.low_ns < step.step_ns < step.high_ns
    parts = (step.compute_ns, step.input_ns, step.idle_ns, step.straggling_ns, step.exposed_ns, step.unexplained_ns)
    assert sum(parts) == pytest.approx(step.step_ns)


def test_what_the_replay_lacks_stays_and_is_in_the_interval() -> None:
    step = one(a_job(step_ns=150 * MS), 2)
    assert (step.step_ns, step.unexplained_ns) == pytest.approx((150 * MS, 30 * MS))
    assert step.high_ns - step.step_ns >= 30 * MS


def test_slower_collectives_are_exposed_in_full_once_nothing_hides_them() -> None:
    step = one(a_job(), 64, flat(60))  # 50 to 110 under 50 ms of computation, then 60 more
    assert step.exposed_ns == pytest.approx((110 + 60 - 90) * MS)
    assert (step.throughput, step.efficiency) == pytest.approx(
        (32 * 120 / 180, 1)
    )  # as slow on 2 ranks over such links
    assert step.samples_per_s == pytest.approx(64 * 32 / 0.180)
    assert step.dominant == "compute"


def test_uncertain_prices_widen_the_interval() -> None:
    sure, unsure = (one(a_job(), 64, flat(60, reach=reach)) for reach in (1.0, 1.5))
    assert unsure.high_ns - unsure.low_ns > 2 * (sure.high_ns - sure.low_ns)


def test_the_slowest_of_more_ranks_is_slower() -> None:
    step = one(a_job(spread_ns=2 * MS), 1024)
    assert largest_of(1) == pytest.approx(0)
    assert largest_of(1000) == pytest.approx(3.24, abs=0.02)  # tables of order statistics
    assert step.straggling_ns == pytest.approx(2 * MS * (largest_of(1024) - largest_of(2)))
    assert step.step_ns == pytest.approx(120 * MS + step.straggling_ns, rel=1e-6)


def test_strong_scaling_shares_the_batch() -> None:
    step = one(a_job(), 4, scaling="strong")
    # 80 ms of computation before the tail at 0.95 / 2 + 0.05, 10 of the tail as it was, loading halved.
    assert step.compute_ns == pytest.approx((80 * 0.525 + 10) * MS)
    assert step.input_ns == pytest.approx(5 * MS)
    assert step.throughput == pytest.approx(120 * MS / step.step_ns)


def test_twice_the_batch() -> None:
    step = one(a_job(), 2, what=WhatIf(batch=2.0))
    assert step.compute_ns == pytest.approx((80 * 1.95 + 10) * MS)
    assert step.throughput == pytest.approx(2 * 120 * MS / step.step_ns)


def test_perfect_overlap_hides_all_that_fits() -> None:
    assert one(a_job(), 2, what=WhatIf(overlap="perfect")).step_ns == pytest.approx(100 * MS)
    assert one(a_job(), 2, flat(80), what=WhatIf(overlap="perfect")).step_ns == pytest.approx(160 * MS)


@pytest.mark.parametrize("change", [WhatIf(batch=4.0), WhatIf(overlap="perfect"), WhatIf()])
def test_a_change_that_makes_the_job_faster_does_not_make_it_scale_better(change: WhatIf) -> None:
    """Collectives grow by 10 ms a rank: no change makes more ranks better than as many times the fewer."""
    prices = Prices(source="paper", of=lambda _, __, ranks: Price(time_ns=ranks * 10 * MS, low_ns=0, high_ns=0))
    found = predict_scale(a_job(), [1, 2, 4, 8], prices, measured=flat(20), what=change)
    fewer, same, *more = found.steps
    assert found.base_throughput == pytest.approx(same.throughput)
    assert (found.base_throughput > 1) is (change != WhatIf())
    assert (fewer.efficiency, same.efficiency) == (None, pytest.approx(1))
    assert all(0 < (step.efficiency or 0) <= 1 + 1e-9 for step in more)


def test_smaller_buckets_leave_a_shorter_tail() -> None:
    step = one(a_job(), 2, what=WhatIf(bucket_bytes=5 * MIB))
    assert step.exposed_ns == pytest.approx(10 * MS)
    with pytest.raises(UsageError, match="no gradient buckets"):
        one(a_job(gradients=()), 2, what=WhatIf(bucket_bytes=MIB))


def test_the_knee_is_the_last_number_that_keeps_four_fifths() -> None:
    prices = Prices(source="paper", of=lambda _, __, ranks: Price(time_ns=ranks * 10 * MS, low_ns=0, high_ns=0))
    found = predict_scale(a_job(), [2, 64], prices)
    assert (found.knee, found.knee_open) == (4, False)  # 140 ms at 4 ranks, 220 at 8
    assert (found.replay_error, found.replay_checks) == (pytest.approx(0), True)


def test_another_gpu_scales_products_by_their_peak_and_the_rest_by_memory() -> None:
    step = one(a_gpu_job(), 2, what=WhatIf(gpu="h100-sxm"))
    products, memory = 312 / 989.4, 2039 / 3350  # bf16 TFLOP/s and GB/s of the two
    factor = 0.9 * products + 0.1 * memory
    assert step.compute_ns == pytest.approx((80 * factor + 10 * memory) * MS, rel=0.02)


@pytest.mark.parametrize(
    ("job", "what", "said"),
    [
        (a_job(), WhatIf(gpu="h100-sxm"), "needs the job's GPU"),
        (a_job(), WhatIf(precision="bf16"), "needs the job's GPU"),
        (a_gpu_job(dtype=None), WhatIf(precision="bf16"), "type of its products"),
        (a_gpu_job(), WhatIf(precision="fp8"), "no prediction for A100"),
    ],
)
def test_a_change_that_nothing_tells_about_is_refused(job: MeasuredJob, what: WhatIf, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        one(job, 2, what=what)
    assert said in refused.value.line


def test_own_prices_are_the_measured_ones_at_home_and_the_ring_s_elsewhere() -> None:
    prices = own_prices(a_job(), Links())
    assert prices.of("all_reduce", 10 * MIB, 2).time_ns == pytest.approx(20 * MS)
    far = prices.of("all_reduce", 10 * MIB, 64)
    assert far.time_ns == pytest.approx(20 * MS * 2 * 63 / 64, rel=0.02)  # wire bytes 1 S at 2 ranks, 2 (n - 1) / n S
    assert far.low_ns < far.time_ns < far.high_ns


def test_a_line_over_sizes_keeps_latency_apart() -> None:
    calls = tuple(replace(BUCKETS[0], size_bytes=size, time_ns=1 * MS + size * 2.0) for size in (1, MIB, 16 * MIB))
    price = own_prices(a_job(calls=calls), Links()).of("all_reduce", 4 * MIB, 2)
    assert price.time_ns == pytest.approx(1 * MS + 4 * MIB * 2.0, rel=1e-3)


def test_without_transfers_the_step_itself_gives_the_rate() -> None:
    plan = tuple(replace(call, time_ns=None) for call in BUCKETS)
    prices = own_prices(a_job(calls=plan), Links())
    assert prices.fitted
    assert prices.of("all_reduce", 10 * MIB, 2).time_ns == pytest.approx(20 * MS, rel=1e-3)
    hidden = a_job(calls=plan, step_ns=100 * MS)
    with pytest.raises(UsageError, match="nothing shows what its collectives cost"):
        own_prices(hidden, Links())


def test_within_a_node_the_job_s_own_rate_counts_between_nodes_the_tables() -> None:
    fast, slow = a_gpu_job(ranks=8), a_gpu_job(ranks=8, calls=tuple(replace(c, time_ns=100 * MS) for c in BUCKETS))
    inside, between = (own_prices(fast, Links()).of("all_reduce", 10 * MIB, n).time_ns for n in (4, 64))
    tables = [predict_collective("all_reduce", 10 * MIB, n_gpus=n, gpu="a100-sxm4-80gb").time_ns for n in (4, 8)]
    assert inside == pytest.approx(20 * MS * tables[0] / tables[1])
    assert own_prices(slow, Links()).of("all_reduce", 10 * MIB, 64).time_ns == pytest.approx(5 * between, rel=0.01)


def test_what_one_rank_of_several_saw_may_be_waiting() -> None:
    slow = {"ranks": 8, "calls": tuple(replace(c, time_ns=200 * MS) for c in BUCKETS)}
    all_seen, alone = (own_prices(a_gpu_job(seen_ranks=n, **slow), Links()) for n in (8, 1))
    both = [prices.of("all_reduce", 10 * MIB, 64) for prices in (all_seen, alone)]
    assert both[1].low_ns == both[0].low_ns < both[1].time_ns < both[0].time_ns
    assert both[1].high_ns == both[0].high_ns
    assert "not traced" in "".join(alone.notes)


def test_a_step_without_collectives_does_not_scale_for_free() -> None:
    with pytest.raises(UsageError, match="calls no collective"):
        one(a_gpu_job(ranks=1, calls=()), 8)


def test_more_ranks_than_cores_are_said() -> None:
    told = [predict_scale(a_job(cores=cores), [2, 4, 8], flat(20)).notes for cores in (None, 8, 4)]
    assert [any("take turns" in note for note in notes) for notes in told] == [False, False, True]
    (note,) = (note for note in told[2] if "take turns" in note)
    assert note.startswith("8 ranks on this host's 4 cores")


def test_other_numbers_of_ranks_are_in_more_doubt_than_the_measured_one() -> None:
    for ranks, wider in ((2, False), (4, True)):
        sure, unsure = (one(a_job(doubt=doubt), ranks) for doubt in (0.0, 0.1))
        assert sure.step_ns == unsure.step_ns
        assert (unsure.high_ns > sure.high_ns) == wider
        assert (unsure.low_ns < sure.low_ns) == wider
