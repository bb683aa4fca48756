"""Kernels by name: figures against the reference answers, classes and matrix units by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hand_events import copy, kernel, op, trace

from stepscope.traces.kernel_names import uses_tensor_cores
from stepscope.traces.kernels import kernel_table
from stepscope.traces.load import load_traces

SETS = Path(__file__).parents[3].parent / "shared" / "data" / "traces"


@pytest.mark.parametrize(
    "name",
    [
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn",
        "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
        "turing_h1688gemm_128x128_nn",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(...)",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5_tensor16x8x8",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x",
        "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
        "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47",
    ],
)
def test_a_name_that_tells_of_matrix_units_says_so(name: str) -> None:
    assert uses_tensor_cores(name) is True


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_128x64_nn",
        "void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 32>(float*)",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)",
        "sm86_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_stage3_g1_ffma_aligna4",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "Cijk_Ailk_Bljk_SB_MT64x64x8_SE_TT4_4_WG16_16_1",
    ],
)
def test_a_name_that_tells_of_the_vector_units_says_so(name: str) -> None:
    assert uses_tensor_cores(name) is False


@pytest.mark.parametrize("name", ["triton_mm", "my_kernel", "SubTensorOpWithScalar1d", "ncclDevKernel_Generic(x)"])
def test_a_name_that_tells_neither_stays_unknown(name: str) -> None:
    assert uses_tensor_cores(name) is None


def test_each_name_has_its_own_mean_minimum_and_maximum_however_many_names_there_are() -> None:
    rows = [kernel(f"k{i}", 100 * i + 10 * run, 100 * i + 10 * run + 1 + run) for i in range(15) for run in range(3)]
    table = kernel_table(trace(*rows))
    assert table is not None
    assert len(table.rows) == 15
    assert {(r.calls, r.total_ns, r.min_ns, r.max_ns, r.mean_ns, r.median_ns) for r in table.rows} == {
        (3, 6, 1, 3, 2.0, 2.0)
    }


def test_what_the_limit_leaves_out_is_counted() -> None:
    table = kernel_table(trace(kernel("a", 0, 5), kernel("b", 5, 7), kernel("b", 7, 9), kernel("c", 9, 10)), limit=1)
    assert table is not None
    assert [r.name for r in table.rows] == ["a"]
    assert (table.left_out_names, table.left_out_calls, table.left_out_ns, table.total_ns) == (2, 3, 5, 10)


def test_the_median_of_an_even_number_of_runs_lies_between_the_middle_two() -> None:
    table = kernel_table(trace(*(kernel("a", 100 * i, 100 * i + d) for i, d in enumerate((9, 1, 4, 2)))))
    assert table is not None
    assert table.rows[0].median_ns == 3.0


def test_shares_of_compute_time_leave_communication_out() -> None:
    table = kernel_table(trace(
        kernel("volta_sgemm_64x64_nn", 0, 10), kernel("nvjet_x", 10, 40), kernel("mine", 40, 100),
        kernel("ncclDevKernel_AllReduce", 100, 900),
    ))  # fmt: skip
    assert table is not None
    assert (table.tensor_core_share, table.other_share, table.unknown_share) == (0.3, 0.1, 0.6)
    assert {r.work for r in table.rows} == {"compute", "communication"}


def test_copies_and_operators_are_no_kernels() -> None:
    assert kernel_table(trace(op("aten::mm", 0, 9), copy("Memcpy DtoD (Device -> Device)", 0, 5))) is None


@pytest.mark.shared_data
@pytest.mark.skipif(not SETS.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    "name", ["dlrm-v100-8rank", "nccl-meta-a100-rank0of2", "ns-resolution-v100", "resnet-ddp-mi300-rank0of8"]
)
def test_the_figures_of_real_traces_equal_the_reference(name: str) -> None:
    reference = json.loads((SETS / name / "reference.json").read_text())["ranks"]
    for each in load_traces(SETS / name).ranks:
        table = kernel_table(each)
        assert table is not None
        expected = {k["name"]: k for k in reference[str(each.rank)]["kernels"] if k["type"] != "memory"}
        assert len(table.rows) == len(expected)
        for row in table.rows:
            k = expected[row.name]
            assert (row.calls, row.min_ns, row.max_ns) == (k["count"], k["min"], k["max"])
            assert row.total_ns == k["sum"]
            assert row.work == {"computation": "compute", "communication": "communication"}[k["type"]]
