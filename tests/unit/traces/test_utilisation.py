"""MFU and HFU: FLOP over time and the peak of the device in the dtype in use."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.hand_events import Row, kernel, launch, mark, op, trace

from stepscope.records.trace_budget import Utilisation
from stepscope.traces.events import Note, RankTrace, RankView
from stepscope.traces.operators import flop_by_event
from stepscope.traces.sections import Wanted
from stepscope.traces.utilisation import matrix_dtype, matrix_work, utilisation

A100 = ("NVIDIA A100-SXM4-80GB",)
PEAK = 312e12  # bf16, dense


def of(made: RankTrace, **options: Any) -> Utilisation:
    return utilisation(RankView(made, Wanted(**options)))


def dtype_of(made: RankTrace) -> tuple[str | None, str | None]:
    view = RankView(made)
    return matrix_dtype(made.events, matrix_work(view))


def steps(*rows: Row) -> list[Row]:
    """Two steps of 1000 ns each on device and host."""
    return [
        mark("ProfilerStep#1", 0, 1000), mark("ProfilerStep#2", 1000, 2000),
        launch(1, 2, 1), launch(1000, 1001, 2), kernel("ampere_bf16_s16816gemm_bf16_128x64", 10, 900, 1),
        kernel("ampere_bf16_s16816gemm_bf16_128x64", 1010, 2000, 2), *rows,
    ]  # fmt: skip


def test_mfu_is_the_models_flop_over_time_and_peak() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=0.4 * PEAK * 1000e-9)
    assert (found.dtype, found.dtype_source, found.peak_flops_per_s) == ("bf16", "kernels", PEAK)
    assert found.mfu == pytest.approx(0.4)
    assert [s.mfu for s in found.steps] == [pytest.approx(0.4), pytest.approx(0.4)]
    assert (found.hfu, found.flop_source, found.error) == (None, "given", None)


def test_the_last_step_of_a_cut_file_is_not_whole() -> None:
    notes = (Note(kind="truncated", text="the file stops inside its list of events"),)
    found = of(replace(trace(*steps(), device_names=A100), notes=notes), model_flop=1e8)
    assert len(found.steps) == 1
    (one,) = [row for row in steps() if row.name == "ProfilerStep#1"]
    lone = [one, *[row for row in steps() if "ProfilerStep" not in row.name]]
    found = of(replace(trace(*lone, device_names=A100), notes=notes), model_flop=1e8)
    assert (found.mfu, found.steps) == (None, ())
    assert "no whole step: the file is truncated" in (found.unavailable or "")


def test_hfu_takes_the_hardware_flop() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=3e8, hardware_flop=4e8)
    assert found.hfu == pytest.approx(found.mfu * 4 / 3)


def test_more_than_the_peak_is_an_error_and_not_a_result() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=1.2 * PEAK * 1000e-9)
    assert "MFU 1.20" in found.error


def test_an_unknown_device_leaves_the_figures_unknown_with_the_reason() -> None:
    found = of(trace(*steps(), device_names=("Unheard-of Accelerator",)), model_flop=1e8)
    assert (found.mfu, found.peak_flops_per_s) == (None, None)
    assert "peak unknown" in found.unavailable


def test_without_device_names_or_steps_the_reasons_say_so() -> None:
    found = of(trace(kernel("nvjet_x", 0, 5)), model_flop=1e8)
    assert found.mfu is None
    assert "names no device" in found.unavailable
    assert "no steps" in found.unavailable


def test_executed_matrix_products_are_hardware_flop_and_say_nothing_of_the_model() -> None:
    products = [
        op("aten::mm", 0, 20, dims="[[64, 32], [32, 16]]"),
        op("aten::mm", 1000, 1020, dims="[[64, 32], [32, 16]]"),
    ]
    found = of(trace(*steps(*products), device_names=A100))
    assert (found.hardware_flop, found.model_flop, found.flop_source) == (2 * 64 * 32 * 16, None, "shapes")
    assert found.mfu is None
    assert found.hfu == pytest.approx(2 * 64 * 32 * 16 / (1000e-9 * PEAK))


def test_recorded_flop_are_used_where_there_are_any() -> None:
    recorded = [op("aten::conv2d", at, at + 20, flop=10**8) for at in (0, 1000)]
    found = of(trace(*steps(*recorded), device_names=A100))
    assert (found.hardware_flop, found.flop_source, found.flop_coverage) == (10**8, "recorded", 1.0)


def test_flop_that_cover_little_of_the_matrix_kernels_time_leave_hfu_unknown() -> None:
    """Compiled code: its kernels carry all the time, and one small eager product all the FLOP that are recorded."""
    compiled = [
        op("CompiledFunction", 100, 200), launch(110, 111, 3), kernel("triton_tem_fused_mm_3", 2100, 2990, 3),
        op("## Call CompiledFxGraph", 200, 300), launch(210, 211, 4),
        kernel("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1", 3000, 98_000, 4),
        op("aten::mm", 400, 420, dims="[[64, 32], [32, 16]]"), launch(401, 402, 5),
        kernel("volta_sgemm_128x64_nn", 98_000, 98_600, 5), mark("ProfilerStep#1", 0, 1000),
    ]  # fmt: skip
    found = of(trace(*compiled, device_names=A100))
    assert (found.hardware_flop, found.hfu) == (None, None)
    assert found.flop_coverage == pytest.approx(600 / 96_490)
    assert "recorded for 0.6" in found.unavailable
    # and the peak is that of the kernels with most time, not of the only product with shapes
    assert (found.dtype, found.peak_flops_per_s) == ("tf32", 156e12)


def test_a_products_flop_count_for_kernels_that_operators_inside_it_launch() -> None:
    nested = [op("aten::mm", 0, 900, dims="[[64, 32], [32, 16]]"), op("inner", 0, 800), mark("ProfilerStep#1", 0, 1000)]
    found = of(trace(*nested, launch(5, 6, 1), kernel("nvjet_tst_64x8", 10, 90, 1), device_names=A100))
    assert (found.flop_coverage, found.hardware_flop, found.dtype) == (1.0, 2 * 64 * 32 * 16, "bf16")


def test_kernels_without_a_recorded_launch_are_not_covered() -> None:
    found = of(trace(*steps(op("aten::mm", 400, 420, dims="[[64, 32], [32, 16]]")), device_names=A100))
    assert (found.flop_coverage, found.hfu) == (0.0, None)


def test_a_dtype_that_most_of_the_matrix_time_does_not_tell_leaves_the_peak_unknown() -> None:
    rows = [kernel("triton_tem_fused_mm_3", 0, 900), kernel("ampere_sgemm_64x64_nn", 900, 1000)]
    found = of(trace(*rows, mark("ProfilerStep#1", 0, 1000), device_names=A100), model_flop=1e8)
    assert (found.dtype, found.peak_flops_per_s, found.mfu) == (None, None, None)
    assert "90" in found.unavailable


def test_a_kernel_that_names_no_type_takes_its_operators_half_precision_inputs() -> None:
    half = '["c10::BFloat16", "c10::BFloat16"]'
    product = op("aten::mm", 0, 20, dims="[[64, 32], [32, 16]]", types=half)
    named = trace(product, launch(5, 6, 1), kernel("ampere_s16816gemm_128x64", 10, 90, 1))
    assert dtype_of(named) == ("bf16", "kernels")


def test_the_models_flop_are_three_forward_passes_whatever_backward_recomputes() -> None:
    """2 steps; the second product in backward is the forward pass's, run again."""
    dims = "[[64, 32], [32, 16]]"
    rows = [
        each
        for at in (0, 1000)
        for each in (
            op("aten::mm", at, at + 20, dims=dims),
            op("autograd::engine::evaluate_function: MmBackward0", at + 100, at + 400, thread="autograd"),
            *(op("aten::mm", at + begin, at + begin + 20, dims=dims, thread="autograd") for begin in (110, 150, 200)),
        )
    ]
    launches = [launch(at + 5, at + 6, n + 10) for n, at in enumerate((0, 1000))]
    products = [
        kernel("ampere_bf16_s16816gemm_bf16_128x64", at + 7, at + 900, n + 10) for n, at in enumerate((0, 1000))
    ]
    marks = [mark("ProfilerStep#1", 0, 1000), mark("ProfilerStep#2", 1000, 2000)]
    found = of(trace(*marks, *rows, *launches, *products, device_names=A100))
    one = 2 * 64 * 32 * 16
    assert (found.model_flop, found.hardware_flop) == (3 * one, 4 * one)
    assert found.hfu == pytest.approx(found.mfu * 4 / 3)


def test_what_a_first_layer_need_not_compute_backward_is_no_models_flop() -> None:
    """Its input needs no gradient: one product forward, one backward, and nothing that ran less often than it counts."""
    dims = "[[64, 32], [32, 16]]"
    rows = [
        op("aten::mm", 0, 20, dims=dims),
        op("autograd::engine::evaluate_function: MmBackward0", 100, 400, thread="autograd"),
        op("aten::mm", 110, 130, dims=dims, thread="autograd"),
    ]
    work = [launch(5, 6, 9), kernel("ampere_bf16_s16816gemm_bf16_128x64", 10, 900, 9)]
    found = of(trace(mark("ProfilerStep#1", 0, 1000), *rows, *work, device_names=A100))
    assert (found.model_flop, found.mfu) == (found.hardware_flop, found.hfu)
    assert found.model_flop == 2 * 2 * 64 * 32 * 16


def test_stated_flop_of_which_less_ran_than_the_model_asks_are_an_error() -> None:
    found = of(trace(*steps(), device_names=A100), model_flop=3e8, hardware_flop=2e8)
    assert "is below MFU" in (found.error or "")


IMAGE, WEIGHT, GRADIENT = "[2, 3, 8, 8]", "[4, 3, 3, 3]", "[2, 4, 4, 4]"
SDP = "aten::_scaled_dot_product"
FORWARD_CONV = 2 * 2 * 4 * 4 * 4 * 3 * 3 * 3
ATTENTION = 2 * 2 * 4 * 16 * 16 * (8 + 8)
QKV = "[2, 4, 16, 8], [2, 4, 16, 8], [2, 4, 16, 8]"
BSHD = "[2, 16, 4, 8], [2, 16, 2, 8], [2, 16, 2, 8]"  # two heads of the keys


@pytest.mark.parametrize(
    ("name", "dims", "values", "flop"),
    [
        ("aten::convolution", f"[{IMAGE}, {WEIGHT}, [4]]",
         ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"], FORWARD_CONV),
        ("aten::convolution", f"[{GRADIENT}, [4, 3, 2, 2], []]",
         ["", "", "", "[2]", "[0]", "[1]", "True", "[0]", "1"], 2 * 2 * 4 * 4 * 4 * 3 * 2 * 2),
        ("aten::convolution_backward", f"[{GRADIENT}, {IMAGE}, {WEIGHT}]",
         ["", "", "", "[4]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, True]"], 2 * FORWARD_CONV),
        ("aten::convolution_backward", f"[{GRADIENT}, {IMAGE}, {WEIGHT}]",
         ["", "", "", "[4]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]"], FORWARD_CONV),
        (f"{SDP}_flash_attention_for_cpu", f"[{QKV}]", ["", "", "", "0.", "False", "", ""], ATTENTION),
        (f"{SDP}_flash_attention_for_cpu", f"[{QKV}]", ["", "", "", "0.", "True", "", ""], ATTENTION / 2),
        (f"{SDP}_flash_attention_for_cpu_backward", f"[[2, 4, 16, 8], {QKV}]",
         ["", "", "", "", "", "", "0.", "True", "", ""], ATTENTION / 2 * 2.5),
    ],
)  # fmt: skip
def test_convolutions_and_attention_are_counted_from_shapes_and_other_inputs(
    name: str, dims: str, values: list[str], flop: float
) -> None:
    product = op(name, 5, 20, dims=dims, values=json.dumps(values))
    found = of(
        trace(
            op("aten::conv2d" if "conv" in name else f"{SDP}_attention", 1, 30),
            product,
            mark("ProfilerStep#1", 0, 1000),
        )
    )
    assert (found.hardware_flop, found.flop_incomplete) == (flop, ())


def test_convolutions_make_the_executed_flop_unknown_instead_of_too_small() -> None:
    convolution = op("aten::cudnn_convolution", 30, 40, dims="[[1, 3, 8, 8]]")
    found = of(trace(*steps(op("aten::mm", 5, 20, dims="[[64, 32], [32, 16]]"), convolution), device_names=A100))
    assert (found.hardware_flop, found.hfu) == (None, None)
    assert found.flop_incomplete == ("aten::cudnn_convolution",)
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
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(x::Params)", "tf32"),
        ("cutlass_80_tensorop_f16_s1688gemm_f16_64x64_nn", "fp16"),
        ("cutlass_80_tensorop_s1688bf16gemm_64x64", "bf16"),
        ("ampere_bf16_s1688gemm_bf16_128x64", "bf16"),
        ("turing_s1688cudnn_128x64", "fp16"),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "fp16"),
        ("ampere_h16816gemm_128x64_ldg8_nn", "fp16"),
        ("ampere_s16816gemm_128x64", None),
        ("cutlass_80_tensorop_i8816gemm_s8_256x128", "int8"),
        ("cutlass_80_tensorop_d884gemm_64x64", "fp64"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize", "tf32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_ffma", "fp32"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "bf16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn", "fp8"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN", "bf16"),
        ("nvjet_sm100_hsh_128x256", "fp16"),
        ("nvjet_qqtst_128x128_128x6", "fp8"),
        ("nvjet_sss_128x64", None),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x64_MI16x16x16x1_SN", "fp16"),
        ("Cijk_Ailk_Bljk_HB_MT64x64x64", "fp16"),
        ("Cijk_Alik_Bljk_F8BS_BH_MT64x64x64", "fp8"),
        ("Cijk_Ailk_Bljk_DB_MT64x64x64", "fp64"),
        ("triton_tem_fused_mm_3", None),
        ("_ZN5aiter39f4gemm_bf16_per1x32Fp4_BpreShuffle_64x128E", "fp4"),
        ("_gemm_afp4wfp4_kernel_BLOCK_SIZE_M_32", "fp4"),
        ("_gemm_a8w8_blockscale_kernel", "fp8"),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_t128x128x256_s5_et128x64_cga1x1x1_sm100f", "fp4"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", "fp8"),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128", "fp8"),
        ("bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128", "bf16"),
        ("bmm_Bfloat16_MxE2m1Bfloat16_Fp32_bA32_t128x16x256u2_s5", "bf16"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", "fp8"),
        ("nvjet_sm100_ootst_128x192_256x5_4x1_2cta", "fp4"),
        ("cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_bf16_bf16", "fp4"),
        ("void cutlass::device_kernel<GemmUniversal<nv_float4_t<float_e2m1_t>>>(Params)", "fp4"),
        ("Cijk_Alik_Bljk_F4BS_BH_MT256x256x128", "fp4"),
        ("void marlin::Marlin<__nv_bfloat16, 128>(int4*)", "bf16"),
        ("moe_wna16_gemm_kernel", None),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "bf16"),
        ("_p_matmul_ogs_NNT_bf16xfp8e4nvxmxfp4_128x128x128x1", "fp8"),
        ("_p_matmul_ogs_NNT_bf16xmxfp4xmxfp4_128x128x128x1", "fp4"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>", "bf16"),
        ("_ZN2ck6device6kernelINS_35GridwiseGemm_xdlops_bwd_weightILi64EttftLNS_2opES8_S8_Li1EEE", "bf16"),
        ("void ck_tile::kentry<ck_tile::MXGemm<ck_tile::pk_fp4_t>>(int)", "fp4"),
        ("_ZN2ck16kernel_gemm_xdlIDF16bLi8EE", "bf16"),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>", None),
        ("void at::native::vectorized_elementwise_kernel<4, c10::BFloat16>", None),
    ],
)
def test_the_dtype_comes_from_the_names_of_matrix_kernels(name: str, dtype: str | None) -> None:
    assert dtype_of(trace(kernel(name, 0, 10)))[0] == dtype


F8 = '["c10::Float8_e4m3fn", "c10::Float8_e5m2", "float", "float", "", "ScalarList"]'
F4 = '["c10::Float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2", "c10::Float8_e4m3fn"]'


@pytest.mark.parametrize(
    ("name", "dims", "types", "flop"),
    [
        ("aten::_scaled_mm", "[[64, 32], [32, 16]]", F8, 2 * 64 * 32 * 16),
        ("aten::_scaled_mm", "[[64, 32], [32, 16]]", F4, 4 * 64 * 32 * 16),  # two numbers an element
        ("aten::_grouped_mm", "[[64, 32], [8, 32, 16], [8]]", "[]", 2 * 64 * 32 * 16),
        ("aten::_grouped_mm", "[[64, 32], [32, 16], [8]]", "[]", 2 * 64 * 32 * 16),
        ("aten::_scaled_grouped_mm", "[[8, 64, 32], [8, 32, 16]]", F8, 8 * 2 * 64 * 32 * 16),
        ("_C::cutlass_scaled_mm", "[[64, 16], [64, 32], [32, 16], [], []]", "[]", 2 * 64 * 32 * 16),
    ],
)
def test_products_of_groups_and_of_narrow_types_are_counted(name: str, dims: str, types: str, flop: int) -> None:
    rows = [op(name, 0, 50, dims=dims, types=types), launch(5, 6, 1), kernel("my_gemm", 10, 900, 1)]
    assert flop_by_event(trace(*rows).events, np.array([0]))[0].tolist() == [flop]


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        (F8, "fp8"),
        (F4, "fp4"),
        ('["c10::BFloat16", "c10::BFloat16"]', "bf16"),
        ('["c10::BFloat16", "unsigned char", "c10::BFloat16"]', None),  # weights of 4 bits, packed
        ('["c10::BFloat16", "c10::Float8_e4m3fn", "float"]', None),
        ('["c10::Float4_e2m1fn_x2", "c10::Float8_e4m3fn"]', None),
        ('["float", "float"]', None),
    ],
)
def test_inputs_of_few_bits_beside_others_leave_the_type_unknown(types: str, dtype: str | None) -> None:
    rows = [op("my::op", 0, 50, dims="[[64, 32], [32, 16], []]", types=types), launch(5, 6, 1)]
    assert dtype_of(trace(*rows, kernel("my_gemm", 10, 900, 1)))[0] == dtype


@pytest.mark.parametrize(
    ("name", "dims", "values", "flop"),
    [
        ("flash_attn::_flash_attn_forward", f"[{BSHD}]", ["", "", "", "0.", "1.", "False", "-1", "-1", "0."], ATTENTION),
        ("flash_attn::_flash_attn_forward", f"[{BSHD}]", ["", "", "", "0.", "1.", "False", "4", "-1", "0."], -1),
        ("flash_attn::_flash_attn_backward", f"[[2, 16, 4, 8], {BSHD}, [2, 16, 4, 8]]",
         [*[""] * 9, "0.", "1.", "True", "-1", "-1"], ATTENTION / 2 * 2.5),
    ],
)  # fmt: skip
def test_attention_of_the_flash_attn_library_is_counted_without_a_window(
    name: str, dims: str, values: list[str], flop: float
) -> None:
    made = trace(op(name, 0, 50, dims=dims, values=json.dumps(values)))
    assert flop_by_event(made.events, np.array([0]))[0].tolist() == [flop]
