"""Kernels by what they do: every spelling of communication, and compute that merely looks like it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.trace_layout import write

from stepscope.traces.kernel_names import Work, is_communication, work_of
from stepscope.traces.load import load_file


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
