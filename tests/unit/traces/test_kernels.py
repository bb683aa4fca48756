"""Kernels by name: figures against the reference answers, classes and matrix units by name.

Copies by kind: sizes, rates and the time that no kernel hid.

What kernels of real traces work on, by their names.

Kernels by what they do: every spelling of communication, and compute that merely looks like it.

Kernels that follow each other again and again.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hand_events import Row, copy, kernel, trace
from tests.trace_layout import write

from stepscope.records.trace_work import SequenceRow
from stepscope.traces import kernels
from stepscope.traces.events import RankView
from stepscope.traces.kernel_names import (
    BANDWIDTH,
    FUSED,
    MATRIX_FP32,
    MATRIX_TENSOR,
    MATRIX_UNKNOWN,
    MATRIX_VECTOR,
    OTHER,
    Work,
    is_communication,
    kernel_kind,
    uses_tensor_cores,
    work_of,
)
from stepscope.traces.kernels import copy_kind, copy_table, kernel_table, sequence_rows
from stepscope.traces.load import load_file


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
    table = kernel_table(viewed(*rows))
    assert len(table.rows) == 15
    assert {(r.calls, r.total_ns, r.min_ns, r.max_ns, r.mean_ns, r.median_ns) for r in table.rows} == {
        (3, 6, 1, 3, 2.0, 2.0)
    }


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "pinned"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("CopyDeviceToHost", "DtoH", None),
        ("Memset (Device)", "memset", None),
        ("__amd_rocclr_fillBufferAligned", "memset", None),
        ("something else", "other", None),
    ],
)
def test_names_tell_direction_and_host_memory(name: str, kind: str, memory: str | None) -> None:
    assert copy_kind(name) == (kind, memory)


def test_a_rate_is_bytes_over_time_of_the_copies_whose_size_is_known() -> None:
    name = "Memcpy HtoD (Pinned -> Device)"
    table = copy_table(
        viewed(copy(name, 0, 100, size_bytes=1000), copy(name, 200, 500, size_bytes=5000), copy(name, 600, 900))
    )
    (row,) = table.rows
    assert (row.calls, row.sized_calls, row.size_bytes, row.largest_bytes, row.median_bytes) == (
        3,
        2,
        6000,
        5000,
        3000.0,
    )
    assert row.bytes_per_s == 6000 / 400e-9


KINDS = {
    "ampere_sgemm_128x64_nn": MATRIX_FP32,
    "volta_sgemm_32x128_tn": MATRIX_FP32,
    "volta_scudnn_128x64_relu_interior_nn_v1": MATRIX_FP32,
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(cutlass_80_simt_sgemm::Params)": MATRIX_FP32,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>": MATRIX_FP32,
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>": MATRIX_FP32,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": MATRIX_TENSOR,
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": MATRIX_TENSOR,
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw": MATRIX_TENSOR,
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1_SN": MATRIX_TENSOR,
    "void cutlass::Kernel<cutlass_75_simt_hgemm_128x128_8x2_nn_align1>": MATRIX_VECTOR,
    "my_gemm_v2": MATRIX_UNKNOWN,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": BANDWIDTH,
    "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float>": BANDWIDTH,
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>": BANDWIDTH,
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>>": BANDWIDTH,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>": BANDWIDTH,
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true>": BANDWIDTH,
    "triton_poi_fused_add_relu_3": FUSED,
    "triton_red_fused_native_layer_norm_0": FUSED,
    "void split_embedding_codegen_forward_unweighted_kernel<float>": OTHER,
    "fbgemm_gpu_permute_1D": OTHER,
    "SubTensorOpWithCastTensor1d": BANDWIDTH,
    "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>": MATRIX_FP32,
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>": MATRIX_FP32,
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void": BANDWIDTH,
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_follows_from_the_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "void ncclKernel_AllReduce(ncclWorkElem)",
        "rcclKernel_AllReduce", "mscclKernel_Sum_half_LL", "void mscclpp::allreduce7<int>(int*)",
        "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
        "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 4>(sglang::RankData*)",
        "void cross_device_reduce_2stage<float, 2>(RankData*)",
        "one_shot_all_reduce_kernel", "two_shot_all_reduce_kernel_inplace", "multimem_all_reduce_kernel",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<float>(AllReduceParams)",
        "allreduce_fusion_kernel_oneshot_lamport",
        "void nvshmemi_transfer_rma(void*)", "nvshmemx_barrier_all_on_stream_kernel",
        "void deep_ep::intranode::dispatch<8>(int4*)", "void deep_ep::internode_ll::combine(void*)",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs",
    ],
)  # fmt: skip
def test_every_spelling_of_communication_is_communication(name: str) -> None:
    assert is_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void cub::DeviceReduceKernel<float>(float*)", "ampere_sgemm_128x64_tn", "volta_fp16_s884gemm",
        "void at::native::vectorized_elementwise_kernel<4, SyncBatchNorm>(int)",
        "void batch_norm_collect_statistics_kernel", "fused_nccl_free_matmul", "splitKreduce_kernel",
        "Memcpy DtoD (Device -> Device)", "triton_red_fused_native_layer_norm_0", "dispatch_gemm", "combine_heads",
        "void allgather_free_attention", "",
    ],
)  # fmt: skip
def test_compute_that_looks_like_it_is_compute(name: str) -> None:
    assert not is_communication(name)


def test_work_is_decided_by_category_before_the_name(tmp_path: Path) -> None:
    spans = [
        ("kernel", "ncclDevKernel_AllReduce", Work.COMMUNICATION), ("kernel", "gemm", Work.COMPUTE),
        ("Kernel", "ncclKernel_AllReduce", Work.COMMUNICATION), ("gpu_memcpy", "Memcpy HtoD", Work.MEMORY),
        ("Memset", "Memset (Device)", Work.MEMORY), ("gpu_memset", "ncclKernel", Work.MEMORY),
        ("user_annotation", "nccl:all_reduce", Work.NOT_DEVICE), ("cpu_op", "ncclDevKernel", Work.NOT_DEVICE),
        ("gpu_user_annotation", "nccl:all_reduce", Work.NOT_DEVICE), ("cuda_sync", "Stream Sync", Work.NOT_DEVICE),
        ("concurrent_kernel", "gemm", Work.COMPUTE), ("overhead", "x", Work.NOT_DEVICE),
    ]  # fmt: skip
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": i, "dur": 1, "pid": 0, "tid": 7}
        for i, (cat, name, _) in enumerate(spans)
    ]
    loaded = load_file(write(tmp_path / "t.json", json.dumps({"traceEvents": events}))).events
    assert work_of(loaded).tolist() == [w for _, _, w in spans]


def runs(text: str, *, stream: int = 7, gap: int = 2):
    """One kernel of 10 ns per letter, ``gap`` ns between; a dash is a copy."""
    made = []
    for i, letter in enumerate(text):
        start = i * (10 + gap)
        make = copy if letter == "-" else kernel
        made.append(make(letter, start, start + 10, stream=stream))
    return made


def viewed(*rows: Row) -> RankView:
    return RankView(trace(*rows))


def pairs(view: RankView, *, least: int) -> tuple[SequenceRow, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "LENGTHS", (2,))
        patch.setattr(kernels, "MIN_COUNT", least)
        return sequence_rows(view)


@given(st.text(alphabet="abc", min_size=2, max_size=40))
def test_pairs_are_counted_as_a_plain_loop_counts_them(text: str) -> None:
    expected: dict[tuple[str, str], int] = {}
    free: dict[tuple[str, str], int] = {}
    for i, pair in enumerate(pairwise(text)):
        if i >= free.get(pair, 0):
            expected[pair] = expected.get(pair, 0) + 1
            free[pair] = i + 2
    found = {r.kernels: r.count for r in pairs(viewed(*runs(text)), least=1)}
    assert found == expected
