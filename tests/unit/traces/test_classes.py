"""What a device event is: by what the user states, its library, the operator that launched it, words of its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.hand_events import Row, call, kernel, launch, mark, op, trace
from tests.trace_builder import build, write_job

from stepscope.api.reading import require_used
from stepscope.core.errors import UsageError
from stepscope.records.trace_quality import QualityFact
from stepscope.traces.classes import BESIDE, classes_of, unknown_fact, work_of
from stepscope.traces.events import RankView
from stepscope.traces.job import analyse_job, combine
from stepscope.traces.kernel_names import Work, work_named
from stepscope.traces.kernels import copy_table
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted
from stepscope.traces.stated_classes import matcher, read_classes

MS = 1_000_000

COMMUNICATES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_Sum_bf16",
    "void mscclpp::collective::allreducePacket<__half>(__half*)",
    "void uccl::internode_ll::dispatch<true, false, 7168>(void*)",
    "void hybrid_ep::combine_kernel<4>(hybrid_ep::combine_param)",
    "void primus_turbo::deep_ep::intranode::notify_dispatch<8>(int const*)",
    "void mori::moe::EpCombineInterNodeV1Kernel<float>(mori::moe::EpDispatchCombineArgs<float>)",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 4>(aiter::RankData*)",
    "_ZN5aiter26reduce_scatter_cross_deviceIDF16bLi8EEEvPN",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::CodecQ6>(void const*)",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8>(float*)",
    "void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel<false>(int)",
    "void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(int*)",
    "_ZN8rocshmem26rocshmem_barrier_all_kernelEv",
    "allgatherAicpuKernel",
    "hcom_broadcast__431_2_1",
    "MoeDistributeCombineV2",
    "all-gather-start.7",
    "my_reduce_scatter",
    "void rdxn_on_stream_kernel<float, (rdxn_ops)2>(int, float*)",
    "void fcollect_on_stream_kernel_warp<int>(int)",
    "moe_ep_dispatch_fp8",
    "void mooncake::combine<7168>(void*)",
    "kernel_combine_token_v2",
    "grouped_a2a_kernel",
)
COMPUTES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(int)",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)",
    "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelIx",
    "triton_poi_fused_add_0",
    "triton__0d1d2d3d",
    "void epilogue::impl::globalKernel<float, float, true>(int)",
    "allgather_gemm_persistent",
    "void fbgemm_gpu::all_to_one_permute(int)",
    "aclnnMatmul_MatMulCommon_MatMulV2",
    "void phi::GraphSendRecvOpCUDAKernel<float>(float const*)",
    "void warp_reduce_scatter_max_kernel<float>(float const*)",
    "block_all_reduce_sum_f32",
)
TELLS_NOTHING = ("void acme::xfer<4>(int4*)", "my_moe_dispatch", "_fwd_combine", "kernel_0", "void p2p_push<int>(int*)")


@pytest.mark.parametrize("name", COMMUNICATES)
def test_a_name_of_a_collective_is_known_in_every_spelling(name: str) -> None:
    assert work_named(name)[0] == Work.COMMUNICATION


@pytest.mark.parametrize("name", COMPUTES)
def test_a_name_that_computes_is_known(name: str) -> None:
    assert work_named(name)[0] == Work.COMPUTE


def test_stated_copies_are_in_the_table_of_copies() -> None:
    stated = Wanted(classes=(("copies", "move_rows"),))
    view = RankView(trace(kernel("move_rows", 0, 5), kernel("fc-dtype_Float", 5, 9)), stated)
    assert work_of(view).tolist() == [Work.MEMORY, Work.COMPUTE]
    table = copy_table(view)
    assert table is not None
    assert [(row.kind, row.calls, row.total_ns) for row in table.rows] == [("other", 1, 5)]


@pytest.mark.parametrize("name", TELLS_NOTHING)
def test_a_name_that_may_be_either_decides_nothing(name: str) -> None:
    assert work_named(name) == (Work.NOT_DEVICE, False)


def under(*operators: str, name: str = "xfer", marked: tuple[str, ...] = (), by: str = "cudaLaunchKernel") -> RankView:
    """One kernel, launched inside these operators (outermost first), inside these ranges of the user's."""
    names = (*marked, *operators)
    rows: list[Row] = [(mark if text in marked else op)(text, depth, 100 - depth) for depth, text in enumerate(names)]
    rows += [call(by, 40, 45, correlation=1), kernel(name, 50, 90, 1)]
    return RankView(replace(trace(*rows), alone=False))


@pytest.mark.parametrize(
    "operators",
    [
        ("c10d::allreduce_",),
        ("record_param_comms",),
        ("c10d::allreduce_", "record_param_comms", "xccl:all_reduce"),
        ("acme_ep::combine",),
        ("MyModule", "deep_ep::low_latency_dispatch"),
        ("symm_mem::two_shot_all_reduce_",),
        ("vllm::all_reduce",),
        ("AllGatherLinear",),
        ("autograd::engine::evaluate_function: AllToAllBackward", "AllToAllBackward"),
    ],
)
def test_the_operator_that_launched_a_kernel_makes_it_communication(operators: tuple[str, ...]) -> None:
    view = under(*operators)
    assert work_of(view)[-1] == Work.COMMUNICATION
    assert not len(classes_of(view).unknown)


@pytest.mark.parametrize(
    "operators",
    [
        ("aten::mul",),
        ("torch::autograd::CopyBackwards",),
        ("moe::permute",),
        ("fsdp::all_gather_copy_in",),
        ("autograd::engine::evaluate_function: FusedLayerNormFunctionBackward", "FusedLayerNormFunctionBackward"),
        ("LigerSwiGLUFunction",),
    ],
)
def test_an_operator_that_computes_makes_it_computation(operators: tuple[str, ...]) -> None:
    view = under("c10d::allreduce_", *operators)
    assert work_of(view)[-1] == Work.COMPUTE
    assert not len(classes_of(view).unknown)


@pytest.mark.parametrize("by", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_a_replayed_graph_is_more_than_the_operator_around_it(by: str) -> None:
    assert len(classes_of(under("c10d::allreduce_", by=by)).unknown) == 1


def test_a_kernel_of_a_computing_library_stays_so_inside_a_collective() -> None:
    view = under("c10d::allreduce_", name="void at::native::elementwise_kernel<128>(int)")
    assert work_of(view)[-1] == Work.COMPUTE


def test_a_range_of_the_users_decides_only_what_nothing_else_does() -> None:
    assert work_of(under(marked=("all_to_all of tokens",)))[-1] == Work.COMMUNICATION
    assert work_of(under(name="softmax", marked=("all_to_all of tokens",)))[-1] == Work.COMPUTE
    assert work_of(under(name="softmax", marked=("nccl:all_reduce",)))[-1] == Work.COMMUNICATION


def test_what_shards_a_model_says_nothing_of_the_kernels_in_it() -> None:
    assert len(classes_of(under(marked=("FSDP::all_gather",))).unknown) == 1


def test_without_operator_and_words_a_kernel_is_unknown() -> None:
    assert len(classes_of(under("MyFunction")).unknown) == 1
    assert len(classes_of(under("ExpertDispatchFunction")).unknown) == 1
    assert len(classes_of(RankView(replace(trace(kernel("xfer", 0, 9)), alone=False))).unknown) == 1


def test_what_the_user_states_comes_first() -> None:
    stated = Wanted(classes=(("communication", "^xf"), ("computation", "nccl"), ("copies", "memo")))
    rows = [kernel("xfer", 0, 5), kernel("ncclDevKernel_AllReduce", 5, 9), kernel("memo", 9, 12)]
    view = RankView(trace(*rows), stated)
    assert work_of(view).tolist() == [Work.COMMUNICATION, Work.COMPUTE, Work.MEMORY]


def fact(*named: tuple[str, int], alone: bool = False, world: int | None = None) -> QualityFact | None:
    """What is unknown of kernels (name, length), one behind the other."""
    rows, at = [], 0
    for name, length in named:
        rows.append(kernel(name, at, at + length))
        at += length
    made = trace(*rows)
    return unknown_fact(RankView(replace(made, alone=alone, meta=replace(made.meta, world_size=world))))


def test_the_share_of_unknown_kernels_and_their_names_are_a_fact() -> None:
    unknown = fact(("gemm", 60), ("b", 10), ("a", 30))
    assert unknown is not None
    assert (unknown.count, unknown.of, unknown.share, unknown.time_ns) == (2, 3, 0.4, 40)
    assert unknown.names == ("a", "b")
    assert unknown.matters
    assert unknown.takes == ("classes",)


@pytest.mark.parametrize(("length", "matters"), [(5, False), (6, True)])
def test_it_matters_above_a_twentieth(length: int, matters: bool) -> None:
    unknown = fact(("gemm", 100 - length), ("a", length))
    assert unknown is not None
    assert unknown.matters is matters


def test_it_matters_where_anything_shows_that_the_rank_is_one_of_several() -> None:
    kernels = (("gemm", 50), ("a", 50))
    for unknown, matters in (
        (fact(*kernels, alone=True), False),
        (fact(*kernels, alone=True, world=8), True),
        (fact(*kernels, ("ncclDevKernel_SendRecv", 1), alone=True), True),
    ):
        assert unknown is not None
        assert unknown.matters is matters
    assert fact(*kernels, world=1) is None


def test_time_that_a_known_kernel_computes_beside_is_not_of_unknown_kind() -> None:
    made = trace(kernel("gemm", 0, 50), kernel("a", 30, 70, stream=8))
    unknown = unknown_fact(RankView(replace(made, alone=False)))
    assert unknown is not None
    assert unknown.time_ns == 20


def test_nothing_is_bound_by_computation_where_classes_are_unknown() -> None:
    rows = [launch(0, 1, 1), kernel("gemm", 0, 4 * MS, 1), kernel("acme", 4 * MS, 6 * MS, 2)]
    (verdict,) = combine([analyse(replace(trace(*rows), alone=False))]).verdicts
    assert verdict.verdict.kind == "unknown"
    assert "of unknown kind" in verdict.verdict.text


def test_names_that_decide_nothing_have_the_operators_read(tmp_path: Path) -> None:
    job = write_job(build(world=2, nccl_args=False), tmp_path)
    for file in job.glob("*.json"):
        text = file.read_text()
        file.write_text(text.replace("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "someKernel"))
    full, scanned = analyse_job(job), analyse_job(job, Wanted(sections=frozenset({"budget"})))
    assert [p.budget for p in scanned.ranks] == [p.budget for p in full.ranks]
    assert all(p.budget is not None and p.budget.parts.comm_ns for p in scanned.ranks)


FORMS = """﻿# a comment
communication my_ep::.*
computation: gemm<4>(int4*)
"acme*xfer" , comm

copies = Copy{lambda(int)#1}
"""


def test_a_file_of_classes_is_read_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text(FORMS, encoding="utf-8")
    assert read_classes(file) == (
        ("communication", "my_ep::.*"),
        ("computation", "gemm<4>(int4*)"),
        ("communication", "acme*xfer"),
        ("copies", "Copy{lambda(int)#1}"),
    )


@pytest.mark.parametrize("line", ["comms xfer", "xfer", "a b c"])
def test_a_line_without_a_class_is_refused_by_its_number(line: str, tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text(f"communication a\n{line}\n")
    with pytest.raises(UsageError, match="line 2"):
        read_classes(file)


@pytest.mark.parametrize("pattern", ["acme::xfer", r"xfer_\w+<\d>", "xfer_out<4>(int4*)", "*::xfer*(", "int4*)"])
def test_a_pattern_is_text_an_expression_or_has_stars(pattern: str) -> None:
    fits = matcher(pattern)
    assert fits("void acme::xfer_out<4>(int4*)")
    assert not fits("void acme::gemm(float*)")


def test_a_file_beside_the_traces_or_in_their_run_states_classes(tmp_path: Path) -> None:
    folder = tmp_path / "RUN" / "cells" / "c0" / "trace"
    job = write_job(build(world=2), folder)
    before = analyse_job(job)
    (tmp_path / "RUN" / BESIDE).write_text("communication mm_kernel\n")
    after = analyse_job(job)
    for then, now in zip(before.ranks, after.ranks, strict=True):
        assert then.budget is not None
        assert now.budget is not None
        assert now.budget.parts.comm_ns > then.budget.parts.comm_ns
    (folder / BESIDE).write_text("computation mm_kernel\n")
    assert [p.budget for p in analyse_job(job).ranks] == [p.budget for p in before.ranks]


def test_a_stated_pattern_that_fits_no_kernel_is_a_fact() -> None:
    stated = Wanted(classes=(("communication", "xfer"), ("copies", "nosuch")))
    (unused,) = analyse(trace(launch(0, 1, 1), kernel("xfer", 2, 5, 1)), stated).quality
    assert (unused.kind, unused.names, unused.matters) == ("unused-classes", ("nosuch",), False)


def test_a_pattern_typed_that_fits_no_kernel_of_any_rank_is_refused(tmp_path: Path) -> None:
    job = analyse_job(write_job(build(world=2), tmp_path), Wanted(classes=(("communication", "nosuch"),)))
    require_used([], [job])
    with pytest.raises(UsageError, match="no kernel has such a name"):
        require_used(["nosuch"], [job])
