"""MFU and HFU: FLOP over time and the peak of the device in the dtype in use."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, kernel, launch, mark, op, trace

from stepscope.records.trace_utilisation import Utilisation
from stepscope.traces.activity import activity_of
from stepscope.traces.events import RankTrace
from stepscope.traces.links import launches_of
from stepscope.traces.steps import step_budgets, step_windows
from stepscope.traces.utilisation import matrix_dtype, utilisation

A100 = ("NVIDIA A100-SXM4-80GB",)
PEAK = 312e12  # bf16, dense


def of(made: RankTrace, **options: object) -> Utilisation:
    activity = activity_of(made.events)
    windows = step_windows(made.events, activity, launches_of(made.events, activity.indices))
    steps = step_budgets(made, activity, windows)
    return utilisation(made, steps, **options)  # type: ignore[arg-type]


def steps(*rows: Row) -> list[Row]:
    """Two steps of 1000 ns each on device and host."""
    return [
        mark("ProfilerStep#1", 0, 1000), mark("ProfilerStep#2", 1000, 2000),
        launch(1, 2, 1), launch(1000, 1001, 2), kernel("ampere_bf16_s16816gemm_bf16_128x64", 10, 900, 1),
        kernel("ampere_bf16_s16816gemm_bf16_128x64", 1010, 2010, 2), *rows,
    ]  # fmt: skip


def test_mfu_is_the_models_flop_over_time_devices_and_peak() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=0.4 * PEAK * 1000e-9 * 8, devices=8)
    assert (found.dtype, found.dtype_source, found.peak_flops_per_s) == ("bf16", "kernels", PEAK)
    assert found.mfu == pytest.approx(0.4)
    assert [s.mfu for s in found.steps] == [pytest.approx(0.4), pytest.approx(0.4)]
    assert (found.hfu, found.flop_source, found.error) == (None, "given", None)


def test_hfu_takes_the_hardware_flop() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=3e8, hardware_flop=4e8)
    assert found.mfu is not None
    assert found.hfu == pytest.approx(found.mfu * 4 / 3)


def test_more_than_the_peak_is_an_error_and_not_a_result() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=1.2 * PEAK * 1000e-9)
    assert found.error is not None
    assert "MFU 1.20" in found.error


def test_an_unknown_device_leaves_the_figures_unknown_with_the_reason() -> None:
    found = of(trace(*steps(), device_names=("Unheard-of Accelerator",)), model_flop=1e8)
    assert (found.mfu, found.peak_flops_per_s) == (None, None)
    assert found.unavailable is not None
    assert "peak unknown" in found.unavailable


def test_without_device_names_or_steps_the_reasons_say_so() -> None:
    found = of(trace(kernel("nvjet_x", 0, 5)), model_flop=1e8)
    assert found.mfu is None
    assert found.unavailable is not None
    assert "names no device" in found.unavailable
    assert "no steps" in found.unavailable


def test_executed_matrix_products_are_hardware_flop_and_say_nothing_of_the_model() -> None:
    products = [
        op("aten::mm", 5, 20, dims="[[64, 32], [32, 16]]"),
        op("aten::mm", 1005, 1020, dims="[[64, 32], [32, 16]]"),
    ]
    found = of(trace(*steps(*products), device_names=A100))
    assert (found.hardware_flop, found.model_flop, found.flop_source) == (2 * 64 * 32 * 16, None, "shapes")
    assert found.mfu is None
    assert found.hfu == pytest.approx(2 * 64 * 32 * 16 / (1000e-9 * PEAK))


def test_recorded_flop_are_used_where_there_are_any() -> None:
    found = of(trace(*steps(op("aten::conv2d", 5, 20, flop=10**8)), device_names=A100))
    assert (found.hardware_flop, found.flop_source) == (10**8 / 2, "recorded")


def test_convolutions_make_the_executed_flop_unknown_instead_of_too_small() -> None:
    convolution = op("aten::cudnn_convolution", 30, 40, dims="[[1, 3, 8, 8]]")
    found = of(trace(*steps(op("aten::mm", 5, 20, dims="[[64, 32], [32, 16]]"), convolution), device_names=A100))
    assert (found.hardware_flop, found.hfu) == (None, None)
    assert found.flop_incomplete == ("aten::cudnn_convolution",)
    assert found.unavailable is not None
    assert "aten::cudnn_convolution" in found.unavailable


def test_a_dtype_without_a_matrix_rate_leaves_the_peak_unknown() -> None:
    found = of(trace(*steps(), device_names=("Tesla V100-SXM2-32GB",)), model_flop=1e8)
    assert (found.dtype, found.mfu) == ("bf16", None)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("ampere_fp16_s16816gemm_fp16_128x64", "fp16"),
        ("volta_h884gemm_128x64", "fp16"),
        ("sm80_xmma_gemm_tf32f32_tensor16x8x8", "tf32"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN", "bf16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x64_MI16x16x16x1_SN", "fp32"),
        ("volta_sgemm_128x64_nn", "fp32"),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>", None),
        ("void at::native::vectorized_elementwise_kernel<4, c10::BFloat16>", None),
    ],
)
def test_the_dtype_comes_from_the_names_of_matrix_kernels(name: str, dtype: str | None) -> None:
    assert matrix_dtype(trace(kernel(name, 0, 10)).events)[0] == dtype


def test_float_inputs_tell_the_dtype_on_a_cpu_and_not_on_a_gpu() -> None:
    product = op("aten::mm", 0, 5, dims="[[4, 8], [8, 2]]", types='["float", "float"]')
    assert matrix_dtype(trace(product).events) == ("fp32", "inputs")
    assert matrix_dtype(trace(product, kernel("mine", 0, 5)).events) == (None, None)
    half = op("aten::mm", 0, 5, dims="[[4, 8], [8, 2]]", types='["c10::Half", "c10::Half"]')
    assert matrix_dtype(trace(half, kernel("mine", 0, 5)).events) == ("fp16", "inputs")
