"""What a step takes that a dry run recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.dry_ranks import VIEW, dry_rank, pointwise, product

from stepscope.core.errors import UsageError
from stepscope.predict.dry.clocks import fused_bytes
from stepscope.predict.dry.kernels import attention_flop, computed_flop, kernel_s, model_flop
from stepscope.predict.dry.step import predict_dry
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster
from stepscope.predict.step.roofline import Roofline
from stepscope.records.dry_run import DryCall, DryOperator

IDEAL = StepCalibration(
    gemm_share=1.25, gemm_traffic=0.0, attention_share=1.0, memory_share=1.0, kernel_us=0.0, elementwise_factor=1.0,
    comm_rate=1.0, comm_near_rate=1.0, overlap_slowdown=1.0,
    optimizer_share=1.0, step_us=0.0, spread_per_doubling=0.0, host_kernel_us=0.0,
    host_view_us=0.0, host_compiled_us=0.0, host_call_us=0.0, base_bytes=0.0, fragmentation=1.0,
)  # fmt: skip
"""Kernels at the specification's rates (0.8 of them is what an H100 reaches), a host that takes no time."""
H100 = Cluster.of("h100-sxm", 8)
TERA = 989.4e12
LARGE = product(8192, 8192, 8192)
ATTENTION = DryOperator(
    op="aten._scaled_dot_product_flash_attention_for_cpu.default", shapes=((2, 32, 4096, 128),) * 3,
    dtypes=("bfloat16",) * 3, out_shapes=((2, 32, 4096, 128),), out_dtypes=("bfloat16",), flop=0, read_bytes=1,
    written_bytes=1, phase="forward", causal=True,
)  # fmt: skip


def test_a_product_takes_its_flop_at_the_rate_of_its_type() -> None:
    roofline = Roofline(H100.gpu, IDEAL)
    flop = 2 * 8192**3
    assert kernel_s(LARGE, roofline) == pytest.approx(flop / TERA)
    assert kernel_s(product(8192, 8192, 8192, dtype="float32"), roofline) == pytest.approx(flop / 66.9e12)
    assert kernel_s(product(8192, 8192, 8192, dtype="float32"), roofline, tf32=True) == pytest.approx(flop / 494.7e12)
    convolution = replace(product(8192, 8192, 8192, dtype="float32"), op="aten.convolution.default")
    assert kernel_s(convolution, roofline) == pytest.approx(flop / 494.7e12)
    volta = Roofline(Cluster.of("v100-sxm2-32gb", 8).gpu, IDEAL)
    assert kernel_s(convolution, volta) == kernel_s(product(8192, 8192, 8192, dtype="float32"), volta, tf32=True)
    with pytest.raises(UsageError, match="no fp8 matrix rate"):
        kernel_s(product(64, 64, 64, dtype="float8_e4m3fn"), Roofline(Cluster.of("a100-sxm4-80gb", 8).gpu, IDEAL))


def test_attention_that_looks_back_is_half_and_its_backward_pass_is_two_and_a_half() -> None:
    forward = 2 * 2 * 32 * 4096 * 4096 * 128
    backward = replace(
        ATTENTION, op="aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        shapes=((2, 32, 4096, 128),) * 4, phase="backward",
    )  # fmt: skip
    assert attention_flop(ATTENTION) == forward
    assert attention_flop(replace(ATTENTION, causal=False)) == 2 * forward
    assert computed_flop(backward) == 2.5 * forward
    assert model_flop(backward) == 2 * forward
    assert model_flop(replace(ATTENTION, recomputed=True)) == 0


def test_memory_bound_kernels_take_their_bytes_and_views_nothing() -> None:
    roofline = Roofline(H100.gpu, IDEAL)
    assert kernel_s(pointwise("add", 1 << 20, inputs=2), roofline) == pytest.approx(6 * (1 << 20) / 3350e9)
    assert kernel_s(VIEW, roofline) == 0


def test_the_parts_sum_to_the_step_and_mfu_is_that_of_the_products() -> None:
    again = replace(LARGE, phase="backward", recomputed=True)
    step = predict_dry(dry_rank((LARGE, product(8192, 8192, 8192, phase="backward"), again)), H100, IDEAL)
    one = 2 * 8192**3 / TERA * 1e9
    assert step.parts["forward"] == pytest.approx(one)
    assert step.parts["backward"] == pytest.approx(2 * one)
    assert sum(step.parts.values()) == pytest.approx(step.step_ns) == pytest.approx(3 * one)
    assert (step.mfu, step.hfu) == (pytest.approx(2 / 3), pytest.approx(1.0))
    assert step.limit == "product"
    assert step.low_ns < step.step_ns < step.high_ns


def test_the_device_waits_for_a_slow_host_but_not_where_it_has_run_ahead() -> None:
    slow = replace(IDEAL, host_kernel_us=100.0)
    small = [replace(pointwise("add", 8), module=str(i)) for i in range(10)]
    bound = predict_dry(dry_rank(tuple(small)), H100, slow)
    assert bound.step_ns == pytest.approx(10 * 100e3, rel=1e-3)
    assert bound.host_share == pytest.approx(1.0, abs=0.01)
    assert bound.limit == "idle"
    ahead = predict_dry(dry_rank((LARGE, *small)), H100, slow)
    assert ahead.step_ns == pytest.approx(100e3 + 2 * 8192**3 / TERA * 1e9, rel=0.01)


def test_compiled_pointwise_operators_are_one_kernel_that_keeps_what_is_between_them() -> None:
    chain = (pointwise("silu", 1 << 20), pointwise("mul", 1 << 20, inputs=2), pointwise("neg", 1 << 20))
    assert fused_bytes(chain) == 2 * 3 * (1 << 20)  # two are read, one is written
    rows = (LARGE, *chain, replace(LARGE, phase="backward"))
    eager, compiled = (predict_dry(dry_rank(rows, compiled=paths), H100, IDEAL) for paths in ((), ("net",)))
    assert [(k.kind, k.launches) for k in compiled.kernels if k.kind in ("memory", "fused")] == [("fused", 1)]
    saved = (7 - 3) * 2 * (1 << 20) / 3350e9 * 1e9
    assert eager.step_ns - compiled.step_ns == pytest.approx(saved)
    assert predict_dry(dry_rank(rows, compiled=("other",)), H100, IDEAL).step_ns == eager.step_ns


def call(op: str, size: int, *, at: int, after: int | None, waited: int | None, group: int = 0) -> DryCall:
    return DryCall(
        op=op, size_bytes=size, dtype="bfloat16", group=group, at=at, after=after, waited=waited, phase="forward"
    )


def test_a_gather_that_may_begin_early_hides_under_computation_and_one_on_the_critical_path_does_not() -> None:
    size = 1 << 28
    alone = H100.group_time("all_gather", size, 8, 1) * 1e9
    world = (tuple(range(8)),)

    def exposed(**when: int | None) -> float:
        calls = (call("all_gather", size, **when),)  # type: ignore[arg-type]
        return predict_dry(dry_rank((LARGE,) * 4, calls=calls, groups=world), H100, IDEAL).exposed_ns

    assert exposed(at=2, after=2, waited=2) == pytest.approx(alone)
    assert exposed(at=2, after=0, waited=2) == 0
    assert exposed(at=4, after=4, waited=None) == pytest.approx(alone)
    hidden = predict_dry(dry_rank((LARGE,) * 4, calls=(call("all_gather", size, at=4, after=4, waited=4),), groups=world),
                         H100, IDEAL, overlap=True)  # fmt: skip
    assert hidden.exposed_ns == 0


def test_ranks_of_a_group_decide_whether_it_takes_the_network_and_what_share_of_it() -> None:
    cluster = Cluster.of("h100-sxm", 64, network="infiniband-ndr")
    groups = (tuple(range(8)), tuple(range(0, 64, 8)))
    calls = tuple(call("all_gather", 1 << 28, at=1, after=1, waited=1, group=group) for group in (0, 1))
    step = predict_dry(dry_rank((LARGE,), calls=calls, groups=groups, world=64), cluster, IDEAL)
    by = {row.domains: row.time_ns for row in step.traffic}
    assert by[1] == pytest.approx(cluster.time("all_gather", 1 << 28, 8, 1) * 1e9)
    assert by[8] == pytest.approx(cluster.time("all_gather", 1 << 28, 8, 8) * 1e9)
    assert by[8] > 5 * by[1]  # one adapter of 50 GB/s instead of 450 GB/s of NVLink


def test_groups_have_streams_of_their_own_and_share_links() -> None:
    size = 1 << 28
    alone = H100.group_time("all_gather", size, 8, 1) * 1e9
    groups = (tuple(range(8)), tuple(range(8)))

    def length(*members: int) -> float:
        calls = tuple(call("all_gather", size, at=0, after=0, waited=0, group=group) for group in members)
        return predict_dry(dry_rank((LARGE,), calls=calls, groups=groups), H100, IDEAL).exposed_ns

    assert length(0, 0) == pytest.approx(2 * alone)
    assert 1.8 * alone < length(0, 1) < 2 * alone  # start-up of the two passes at once


def test_memory_is_laid_beside_the_device() -> None:
    def verdict(gigabytes: float) -> str:
        rank = dry_rank((LARGE,), peak=(0, 0, 0, round(gigabytes * 1e9), 0, 0, 0))
        return predict_dry(rank, H100, replace(IDEAL, base_bytes=2e9)).memory.verdict

    assert [verdict(60), verdict(75), verdict(90)] == ["fits", "tight", "too large"]


def test_ranks_that_share_a_batch_count_its_tokens_once() -> None:
    steps = [predict_dry(dry_rank((LARGE,), mesh=mesh), H100, IDEAL) for mesh in ({"dp": 8}, {"dp": 4, "tp": 2})]
    rates = [step.tokens_per_s for step in steps]
    assert rates[0] is not None
    assert rates[0] == 2 * (rates[1] or 0)
    assert rates[0] == pytest.approx(4096 * 8 / steps[0].step_ns * 1e9)


def test_gpus_before_hopper_reach_more_of_their_peak() -> None:
    steps = {gpu: predict_dry(dry_rank((LARGE,) * 100), Cluster.of(gpu, 8)) for gpu in ("h100-sxm", "a100-sxm4-80gb")}
    shares = {gpu: step.kernels[0].flop / step.kernels[0].time_ns for gpu, step in steps.items()}
    assert shares["h100-sxm"] / 989.4e3 == pytest.approx(0.82 * 0.8, rel=0.12)
    assert shares["a100-sxm4-80gb"] / 312e3 == pytest.approx(0.92 * 0.87, rel=0.12)
