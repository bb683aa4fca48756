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
from stepscope.traces.classes import work_of
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
    kernel_kind,
)
from stepscope.traces.kernels import copy_kind, sequence_rows
from stepscope.traces.load import load_file


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
        ("Memcpy M2D(NonUsmHost)", "HtoD", None),
        ("Memcpy D2M", "DtoH", None),
        ("zeCommandListAppendMemoryCopy(H2D)", "HtoD", None),
        ("Memcpy S2S", "DtoD", None),
        ("zeCommandListAppendMemoryFill", "memset", None),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH", None),
        ("CopyDeviceToPeer", "PtoP", None),
        ("MEMCPY_ASYNC", "other", None),
        ("__amd_rocclr_fillBufferAligned", "memset", None),
        ("something else", "other", None),
    ],
)
def test_names_tell_direction_and_host_memory(name: str, kind: str, memory: str | None) -> None:
    assert copy_kind(name) == (kind, memory)


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
    "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short, 128>": OTHER,
    "flash_prefill_kernel": OTHER,
    "void at::native::masked_fill_kernel<float>": BANDWIDTH,
    "SubTensorOpWithCastTensor1d": BANDWIDTH,
    "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>": MATRIX_FP32,
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>": MATRIX_FP32,
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void": BANDWIDTH,
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_follows_from_the_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


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
    loaded = RankView(load_file(write(tmp_path / "t.json", json.dumps({"traceEvents": events}))))
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
