"""Rows of a comm run become a calibration; what cannot be fitted is named with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.calibration_rows import MACHINE, SIZES, row, sweep

from stepscope.core.errors import UsageError
from stepscope.predict.calibrated import FitWanted, machine_warnings, time_of
from stepscope.predict.calibration import calibrate, placement_of
from stepscope.predict.line_fit import line_time_ns


def made(*rows, machine=MACHINE):
    return calibrate([one for part in rows for one in part], run="run", machine=machine)


def test_gloo_is_fitted_with_its_own_steps_and_wire_bytes() -> None:
    (fit,) = made(sweep("all_gather", world_size=4)).fits
    assert (fit.algorithm, fit.line.steps, fit.line.wire_factor) == ("gloo", 3, 0.875)
    assert fit.line.alpha_ns == pytest.approx(50_000, rel=1e-3)
    assert fit.line.beta_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert fit.line_fails is None
    assert [e.size_bytes for e in fit.errors] == list(SIZES)


def test_other_backends_are_fitted_with_the_ideal_algorithm() -> None:
    (fit,) = made(sweep("all_gather", world_size=4, backend="nccl", device="cuda")).fits
    assert (fit.algorithm, fit.line.wire_factor) == ("ring", 0.75)


def test_a_pattern_has_costs_of_its_own_on_gloo() -> None:
    (fit,) = made(sweep("send_recv", pattern="bi")).fits
    assert (fit.algorithm, fit.line.wire_factor) == ("gloo_bi", 2.0)


def test_each_op_world_type_and_network_has_a_fit_of_its_own() -> None:
    calibration = made(
        sweep(), sweep(world_size=4), sweep(dtype="bfloat16"), sweep(network="1gbit:2"), sweep(in_place=True),
        sweep("broadcast"),
    )  # fmt: skip
    assert len(calibration.fits) == 6
    assert calibration.skipped == ()


def test_a_barrier_is_a_latency() -> None:
    rows = sweep("barrier", world_size=4, alpha_ns=30_000)
    (fit,) = made(rows).fits
    assert fit.line.alpha_ns == pytest.approx(30_000)
    assert fit.line.beta_bytes_per_s is None
    assert len(fit.curve.knots) == 1
    assert time_of(made(rows), "barrier", 0, 4).time_ns == pytest.approx(60_000)


def test_only_the_usual_way_of_calling_is_fitted_and_the_others_are_named() -> None:
    calibration = made(
        sweep(alpha_ns=99_000, reduce_op="max"),
        sweep(alpha_ns=88_000, mode="async", in_flight=4),
        sweep(alpha_ns=77_000, env={"NCCL_ALGO": "Tree"}),
        sweep(alpha_ns=66_000, pacing="back_to_back"),
        sweep(),
    )
    (fit,) = calibration.fits
    assert fit.line.alpha_ns == pytest.approx(50_000, rel=1e-3)
    assert len(calibration.skipped) == 4
    assert any("max: blocking is fitted instead" in text for text in calibration.skipped)


def test_a_run_with_variables_set_says_so() -> None:
    (fit,) = made(sweep(env={"NCCL_ALGO": "Tree"})).fits
    assert fit.notes == ("measured with NCCL_ALGO=Tree",)


def test_calls_in_flight_alone_are_not_the_time_of_one_call() -> None:
    with pytest.raises(UsageError, match="no collective could be fitted") as refused:
        made(sweep(mode="async", in_flight=4))
    assert "only blocking calls" in str(refused.value.why)


def test_too_few_sizes_are_skipped_with_the_reason_and_the_rest_is_fitted() -> None:
    calibration = made(sweep(), sweep("broadcast", sizes=SIZES[:3]), sweep("gather", sizes=(1024, 2048, 3072, 4096)))
    assert [fit.op for fit in calibration.fits] == ["all_reduce"]
    assert "broadcast float32 2 ranks gloo/cpu: 3 sizes measured" in calibration.skipped[0]
    assert "too close together" in calibration.skipped[1]


def test_one_rank_and_failed_cells_are_skipped() -> None:
    failed = row(op="reduce", status="error", error="rank 1 died", size_bytes=None)
    calibration = made(sweep(), sweep("all_gather", world_size=1), [failed])
    assert any("one rank" in text for text in calibration.skipped)
    assert any("rank 1 died" in text for text in calibration.skipped)


def test_sizes_without_a_result_are_left_out_and_counted() -> None:
    rows = sweep()
    rows[-1] = replace(rows[-1], status="skipped", error="larger than memory", time_ns_median=None)
    (fit,) = made(rows).fits
    assert len(fit.errors) == len(SIZES) - 1
    assert "1 size without a result left out" in fit.notes


def test_where_the_line_fails_is_said() -> None:
    (fit,) = made(sweep(bend=lambda size: 2.0 if 2**16 <= size <= 2**20 else 1.0)).fits
    assert fit.line_fails is not None
    assert "too low from 64 KiB to 1 MiB" in fit.line_fails
    assert fit.curve.mean_relative_error < 0.5 * fit.line.mean_relative_error


@pytest.mark.parametrize("factor", [4.0, 8.0])
def test_sizes_that_contradict_each_other_are_noted(factor: float) -> None:
    (fit,) = made(sweep(bend=lambda size: factor if size.bit_length() // 2 % 2 else 1.0)).fits
    assert fit.curve.cross_validated_error != 0
    assert any("too noisy for conclusions" in note for note in fit.notes)


def test_sizes_that_agree_are_not_called_uneven() -> None:
    (fit,) = made(sweep()).fits
    assert not any("unevenly" in note for note in fit.notes)


def test_a_rate_that_no_size_shows_is_noted() -> None:
    (fit,) = made(sweep(sizes=[2**i for i in range(6, 14)], beta_bytes_per_s=1e9)).fits
    assert any("rate is uncertain" in note for note in fit.notes)


def test_matrix_products_give_rates() -> None:
    rows = [
        row(kind="matmul", op="matmul", dtype=dtype, numel=n * n, flops_per_s=rate, size_bytes=4 * n * n)
        for dtype, n, rate in (("float32", 512, 1e11), ("float32", 1024, 2e11), ("float32", 1024, 3e11))
    ]
    calibration = made(rows)
    assert [(m.dtype, m.size, m.flops_per_s) for m in calibration.matmul] == [
        ("float32", 512, 1e11), ("float32", 1024, 3e11),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no rows at all"),
        ([row(kind="pairs")], "pairs"),
        ([row(status="timeout", error="rank 1 never came", size_bytes=None)], "rank 1 never came"),
        (sweep(sizes=SIZES[:2]), "2 sizes measured"),
    ],
)
def test_nothing_to_fit_is_refused_with_the_reason_and_a_way_out(rows, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        made(rows)
    assert why in str(refused.value.why)
    assert "stepscope comm" in str(refused.value.fix)


def test_placement_is_ranks_per_host() -> None:
    two = replace(MACHINE, hosts=("a", "b"))
    assert placement_of(4, 1, MACHINE) == "4"
    assert placement_of(4, 2, MACHINE) == "2+2"
    assert placement_of(5, 2, MACHINE) == "5 on 2 hosts"
    assert placement_of(4, None, MACHINE) == "4"
    assert placement_of(4, None, two) == "2+2"


def test_a_measured_world_is_read_from_its_curve() -> None:
    calibration = made(sweep(world_size=2), sweep(world_size=4))
    found = time_of(calibration, "all_reduce", 3 * 2**20, 4)
    line = calibration.fits[1].line
    assert found.time_ns == pytest.approx(line_time_ns(line, 3 * 2**20), rel=0.03)
    assert found.low_ns < found.time_ns < found.high_ns
    assert found.why == "curve measured on 4 ranks (pipelined+protocols)"
    assert found.notes == ()


def test_another_world_is_scaled_and_says_so_with_a_wider_interval() -> None:
    calibration = made(sweep(world_size=2))
    here, there = (time_of(calibration, "all_reduce", 2**22, world) for world in (2, 4))
    assert there.time_ns == pytest.approx(6 * 50_000 + 1.5 * 2**22, rel=0.03)
    assert there.high_ns / there.low_ns > here.high_ns / here.low_ns
    assert "4 ranks were not measured" in there.notes[0]
    assert "scaled from 2 ranks" in there.why


def test_what_was_asked_for_is_found_or_named() -> None:
    calibration = made(sweep(), sweep(network="1gbit:2", alpha_ns=500_000), sweep("broadcast"))
    slow = time_of(calibration, "all_reduce", 1024, 2, asked=FitWanted(network="1gbit:2"))
    assert slow.time_ns > 5 * time_of(calibration, "all_reduce", 1024, 2).time_ns
    other = time_of(calibration, "all_reduce", 1024, 2, asked=FitWanted(dtype="bfloat16"))
    assert any("bfloat16 was not measured" in note for note in other.notes)
    with pytest.raises(UsageError, match="backend nccl"):
        time_of(calibration, "all_reduce", 1024, 2, asked=FitWanted(backend="nccl"))
    with pytest.raises(UsageError, match="gather is not in the calibration"):
        time_of(calibration, "gather", 1024, 2)
    with pytest.raises(UsageError, match="did you mean 'all_reduce'"):
        time_of(calibration, "allreduce", 1024, 2)


def test_sizes_outside_the_measured_ones_are_noted() -> None:
    calibration = made(sweep())
    assert any("outside the measured 1 KiB to 64 MiB" in n for n in time_of(calibration, "all_reduce", 2**30, 2).notes)
    least = time_of(calibration, "all_reduce", 0, 2)
    assert least.time_ns == pytest.approx(100_000, rel=0.07)
    assert least.low_ns <= 100_000 <= least.high_ns
    assert time_of(calibration, "all_reduce", 2**20, 1).time_ns == 0


def test_the_interval_outside_the_measured_sizes_holds_what_the_line_says() -> None:
    calibration = made(sweep())
    (fit,) = calibration.fits
    slower = replace(fit.line, beta_bytes_per_s=(fit.line.beta_bytes_per_s or 0) / 10)
    differing = replace(calibration, fits=(replace(fit, line=slower),))
    outside = time_of(differing, "all_reduce", 2**30, 2)
    assert outside.high_ns == pytest.approx(line_time_ns(slower, 2**30))
    assert outside.time_ns == time_of(calibration, "all_reduce", 2**30, 2).time_ns
    assert time_of(differing, "all_reduce", 2**20, 2) == time_of(calibration, "all_reduce", 2**20, 2)


def test_another_machine_is_warned_about() -> None:
    calibration = made(sweep())
    assert machine_warnings(calibration, MACHINE) == ()
    other = replace(MACHINE, hosts=("node2",), gpus=("NVIDIA H100 80GB HBM3",) * 2, torch_version=None)
    warnings = machine_warnings(calibration, other)
    assert warnings[0].startswith("calibrated on node1, used on node2")
    assert "no GPU, used on 2x NVIDIA H100 80GB HBM3" in warnings[1]
    assert len(warnings) == 2
