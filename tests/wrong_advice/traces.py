"""Traced jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench_evidence import bench, made
from tests.hand_events import Row, call, copy, kernel, launch, mark, op
from tests.sharded_jobs import experts, fsdp, on_hosts, pipeline, tensor, traces_of
from tests.trace_builder import Clock
from tests.trace_evidence import by_hand, generated, kernels, traced, with_idle, with_parts, with_ranks, with_setup
from tests.wrong_advice import Case, case

from stepscope.diagnose.rules.profiler_overhead import traced_step_ns
from stepscope.records.nouns import Measured
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_collectives import BucketRow, ConformanceCheck
from stepscope.results.evidence import Evidence, TraceEvidence

A100, V100, MI300 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "AMD Instinct MI300X"
WORK = "void at::native::vectorized_elementwise_kernel<4>"
BF16 = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x5_tn"
SLOW = {"forward_ns": 1_000_000, "backward_ns": 2_000_000}


@case("clock_skew")
def ranks_of_one_host_have_one_clock(tmp_path: Path) -> Case:
    skewed = generated(tmp_path, world=2, steps=5, clocks={1: Clock(offset_ns=3_000_000)})
    return Case(
        right=on_hosts(skewed, "a", "b"), wrong=on_hosts(skewed, "a", "a"), advice="chrony", instead="share a host"
    )


@case("data_loading")
def one_slow_loader_needs_no_more_workers_everywhere(tmp_path: Path) -> Case:
    job = generated(tmp_path, world=4)
    every, none = with_idle(job, data=0.4).traces[0].summary, with_idle(job, data=0.0).traces[0].summary
    one = replace(none, ranks=(*none.ranks[:3], with_idle(job, data=0.8).traces[0].summary.ranks[3]))
    return Case(right=traced(every), wrong=traced(one), advice="num_workers=...", instead="only rank 3 of 4 waits")


def _waits_for_data(device: str | None = None, **loader: Any) -> Evidence:
    """Two ranks of one host with four cores, which wait half of the time for this loader."""
    rows = kernels(("ampere_sgemm", 500)) if device else [op("aten::mm", 0, 1_000_000)]
    job = with_idle(by_hand(*rows, device=device), data=0.5)
    setup = JobSetup(device="cuda" if device else "cpu", cores=4, loader=LoaderSetup(**loader))
    (rank,) = job.traces[0].summary.ranks
    return with_setup(traced(replace(job.traces[0].summary, ranks=(rank, rank), world_size=2)), setup)


def _two_ranks_on(cores: int) -> Evidence:
    """Two ranks of a thread each, on CPUs of one host, which wait half of the time for a loader without workers."""
    job = with_idle(by_hand(op("aten::mm", 0, 1_000_000)), data=0.5)
    (rank,) = job.traces[0].summary.ranks
    rank = replace(rank, facts=replace(rank.facts, host="node0"))
    setup = JobSetup(device="cpu", cores=cores, threads=1, loader=LoaderSetup(workers=0))
    return with_setup(traced(replace(job.traces[0].summary, ranks=(rank, rank), world_size=2)), setup)


@case("data_loading")
def ranks_that_fill_the_cores_are_given_no_workers(_: Path) -> Case:
    return Case(
        right=_two_ranks_on(8), wrong=_two_ranks_on(2), advice="worker processes", instead="make a batch cheaper"
    )


@case("data_loading")
def four_cores_are_not_given_eight_workers(_: Path) -> Case:
    return Case(
        right=_waits_for_data(A100, workers=1),
        wrong=_waits_for_data(A100, workers=4),
        advice="loader workers instead of",
        instead="make a batch cheaper",
    )


@case("data_loading")
def batches_that_are_pinned_are_not_pinned_again(_: Path) -> Case:
    return Case(
        right=_waits_for_data(A100, workers=1, pinned=False),
        wrong=_waits_for_data(A100, workers=1, pinned=True),
        advice="pin_memory",
        instead="loader workers instead of 1",
    )


@case("data_loading")
def a_cpu_job_has_no_device(_: Path) -> Case:
    return Case(
        right=_waits_for_data(A100, workers=1),
        wrong=_waits_for_data(workers=1),
        advice="augment on the device",
        instead="make a batch cheaper",
    )


@case("data_loading")
def workers_that_stay_are_not_kept(_: Path) -> Case:
    return Case(
        right=_waits_for_data(A100, workers=1, persistent=False),
        wrong=_waits_for_data(A100, workers=1, persistent=True),
        advice="persistent_workers",
        instead="loader workers instead of 1",
    )


@case("expert_skew")
def a_slow_rank_with_even_sizes_has_no_hot_expert(tmp_path: Path) -> Case:
    return Case(
        right=traces_of(experts(hot={1: 2.5}), tmp_path / "hot"),
        wrong=traces_of(experts(slow={1: 1.8}), tmp_path / "slow"),
        advice="balance the router",
        instead="0 of 48 exchanges wait",
    )


@case("exposed_communication")
def reductions_of_the_forward_pass_cannot_hide(tmp_path: Path) -> Case:
    plan = {"world": 2, "steps": 4, "transfer_ns": 300_000, "backward_ns": 600_000, "overlap": False}
    return Case(
        right=generated(tmp_path / "ddp", **plan),
        wrong=generated(tmp_path / "tp", shape="tensor", **plan),
        advice="no_sync",
        instead="sequence parallel",
    )


def _divided(folder: Path, *hosts: str, split: bool = False, device: str = "gloo") -> Evidence:
    """A tensor-parallel job on these hosts; split: its groups gather and scatter, as sequence parallelism does."""
    plan = {"world": 2, "steps": 4, "transfer_ns": 300_000, "backward_ns": 600_000, "shape": "tensor", "device": device}
    made = on_hosts(generated(folder, **plan), *hosts)
    if not split:
        return made

    def scattered(calls: Any) -> Any:
        return tuple(replace(c, op=("all_gather", "reduce_scatter")[n % 2]) for n, c in enumerate(calls))

    (job,) = made.traces
    ranks = tuple(
        replace(p, communication=replace(p.communication, collectives=scattered(p.communication.collectives)))
        for p in job.summary.ranks
        if p.communication is not None
    )
    return traced(replace(job.summary, ranks=ranks))


@case("exposed_communication")
def a_group_on_one_host_is_not_told_to_be_there(tmp_path: Path) -> Case:
    return Case(
        right=_divided(tmp_path / "two", "a", "b"),
        wrong=_divided(tmp_path / "one", "a", "a"),
        advice="keep a tensor-parallel group on one host",
        instead="make the tensor-parallel group smaller",
    )


@case("exposed_communication")
def a_sequence_that_is_split_is_not_split_again(tmp_path: Path) -> Case:
    return Case(
        right=_divided(tmp_path / "whole", "a", "a", device="gpu"),
        wrong=_divided(tmp_path / "split", "a", "a", split=True, device="gpu"),
        advice="(sequence parallel)",
        instead="make the tensor-parallel group smaller",
    )


@case("exposed_communication")
def one_small_message_a_step_cannot_become_fewer(tmp_path: Path) -> Case:
    plan = {"world": 2, "steps": 4, "transfer_ns": 600_000, "overlap": False, "elements": 21}
    return Case(
        right=generated(tmp_path / "many", layers=4, **plan),
        wrong=generated(tmp_path / "one", layers=1, **plan),
        advice="send fewer, larger messages",
        instead="synchronise less often",
    )


@case("exposed_communication")
def stages_that_wait_have_nothing_to_overlap(tmp_path: Path) -> Case:
    plan = {"world": 2, "steps": 4, "transfer_ns": 300_000, "overlap": False}
    return Case(
        right=generated(tmp_path / "ddp", forward_ns=400_000, backward_ns=900_000, **plan),
        wrong=generated(tmp_path / "pp", shape="pipeline", forward_ns=400_000, backward_ns=900_000, **plan),
        advice="overlap could hide nearly all",
        instead="interleaved schedule",
    )


@case("exposed_communication")
def gradients_of_16_bits_are_not_halved_again(tmp_path: Path) -> Case:
    plan = {"world": 2, "steps": 4, "transfer_ns": 300_000, "overlap": False}
    return Case(
        right=generated(tmp_path / "fp32", **plan),
        wrong=generated(tmp_path / "bf16", dtype="BFloat16", **plan),
        advice="bf16_compress_hook",
        instead="the messages have 16 bits already",
    )


def _reduces(folder: Path, backend: str, **setup: Any) -> Evidence:
    job = generated(folder, world=2, steps=4, transfer_ns=300_000, overlap=False).traces[0]
    ranks = (replace(p, facts=replace(p.facts, backend=backend)) for p in job.summary.ranks)
    return with_setup(traced(replace(job.summary, ranks=tuple(ranks))), JobSetup(backend=backend, **setup))


@case("exposed_communication")
def gloo_has_no_hook_of_16_bits(tmp_path: Path) -> Case:
    return Case(
        right=_reduces(tmp_path, "nccl"),
        wrong=_reduces(tmp_path, "gloo"),
        advice="bf16_compress_hook",
        instead="synchronise less often",
    )


@case("exposed_communication")
def gradients_that_a_hook_compresses_get_no_second_hook(tmp_path: Path) -> Case:
    return Case(
        right=_reduces(tmp_path, "nccl", comm_hooks=()),
        wrong=_reduces(tmp_path, "nccl", comm_hooks=("bf16_compress_hook",)),
        advice="bf16_compress_hook",
        instead="synchronise less often",
    )


@case("exposed_communication")
def units_of_16_bits_are_gathered_whatever_accumulates(tmp_path: Path) -> Case:
    def units(name: str, **plan: Any) -> Evidence:
        return traces_of(fsdp(steps=3, prefetch=False, **plan), tmp_path / name)

    return Case(
        right=generated(tmp_path / "ddp", world=2, steps=4, transfer_ns=300_000, overlap=False, dtype="BFloat16"),
        wrong=units("fsdp", dtype="BFloat16"),
        advice="no_sync",
        instead="keep units gathered",
    )


@case("exposed_communication")
def small_messages_cost_latency(tmp_path: Path) -> Case:
    plan = {"world": 2, "steps": 4, "transfer_ns": 300_000, "overlap": False}
    return Case(
        right=generated(tmp_path / "large", elements=1 << 20, **plan),
        wrong=generated(tmp_path / "small", elements=1 << 10, **plan),
        advice="send fewer bytes",
        instead="send fewer, larger messages",
    )


@case("exposed_memcpy")
def copies_within_the_device_are_not_pinned(_: Path) -> Case:
    def copied(name: str) -> Evidence:
        return by_hand(*kernels((name, 300), (WORK, 700)))

    return Case(
        right=copied("Memcpy HtoD (Pageable -> Device)"),
        wrong=copied("Memcpy DtoD (Device -> Device)"),
        advice="pin_memory",
        instead=".contiguous()",
    )


def _buckets(
    folder: Path, *, size: int = 8 << 20, tail_ns: int = 190_000, members: tuple[str, ...] | None = None
) -> Evidence:
    """Steps of 1 ms: a bucket of 1 MiB that takes 20 us hides, a last one of this size exposes ``tail_ns``."""
    summary = generated(folder, world=2, steps=3).traces[0].summary
    ranks = []
    for each in summary.ranks:
        rows = tuple(
            BucketRow(
                rank=each.facts.rank, step=s.step, index=i, wrapper="ddp", op="all_reduce", dtype="Float",
                size_bytes=large, members=members, members_source=None, members_unavailable=None, ready_ns=400_000 * i,
                launch_ns=400_000 * i, start_ns=400_000 * i, end_ns=400_000 * i + ns, waited_ns=0, exposed_ns=ns * i,
            )
            for s in each.steps
            for i, (ns, large) in enumerate(((20_000, 1 << 20), (tail_ns, size)))
        )  # fmt: skip
        timed = tuple(replace(s, parts=replace(s.parts, window_ns=1_000_000)) for s in each.steps)
        ranks.append(replace(each, buckets=rows, steps=timed))
    return traced(replace(summary, ranks=tuple(ranks)))


@case("exposed_tail_bucket")
def one_gradient_is_not_split(tmp_path: Path) -> Case:
    return Case(
        right=_buckets(tmp_path / "several"),
        wrong=_buckets(tmp_path / "one", members=("[50257, 768]",)),
        advice="use a smaller last bucket",
        instead="a smaller cap does not help",
    )


@case("exposed_tail_bucket")
def a_small_bucket_is_latency_and_not_too_large(tmp_path: Path) -> Case:
    return Case(
        right=_buckets(tmp_path / "large"),
        wrong=_buckets(tmp_path / "small", size=64 << 10),
        advice="use a smaller last bucket",
        instead="a smaller one returns 0",
    )


@case("fp32_matmul")
def a_gpu_without_tf32_is_not_told_to_use_it(_: Path) -> Case:
    return Case(
        right=by_hand(*kernels(("ampere_sgemm_128x64_nn", 600), (WORK, 400)), device=A100),
        wrong=by_hand(*kernels(("volta_sgemm_128x64_nn", 600), (WORK, 400)), device=V100),
        advice="set_float32_matmul_precision",
        instead=f"{V100} has no TF32",
    )


@case("fp32_matmul")
def a_job_in_autocast_is_told_what_left_it(_: Path) -> Case:
    fp32 = ("ampere_sgemm_128x64_nn", 300)
    return Case(
        right=by_hand(*kernels(fp32, (WORK, 700)), device=A100),
        wrong=by_hand(*kernels(fp32, (BF16, 700)), device=A100),
        advice="or use bf16 autocast",
        instead="find what leaves autocast",
    )


@case("fsdp_no_prefetch")
def a_host_that_launches_late_is_the_first_to_mend(tmp_path: Path) -> Case:
    late = traces_of(fsdp(prefetch=False, forward_ns=2_000_000, backward_ns=4_000_000), tmp_path)
    return Case(
        right=with_idle(late, host_late=0.01),
        wrong=with_idle(late, host_late=0.3),
        advice="prefetch needs memory for two units at once",
        instead="first let the host launch in time",
    )


@case("fsdp_regathers")
def units_that_do_not_fit_are_not_kept(tmp_path: Path) -> Case:
    plan = {"elements": 64 << 20, **SLOW}
    return Case(
        right=traces_of(fsdp(**plan), tmp_path / "room"),
        wrong=traces_of(fsdp(gpu_bytes=2 << 30, **plan), tmp_path / "full"),
        advice="reshard_after_forward=False",
        instead="no room to keep",
    )


@case("fsdp_root_unit")
def a_model_in_one_unit_lacks_units_for_its_blocks(tmp_path: Path) -> Case:
    return Case(
        right=traces_of(fsdp(root=128 << 20, **SLOW), tmp_path / "root"),
        wrong=traces_of(fsdp(root=128 << 20, whole=True, **SLOW), tmp_path / "whole"),
        advice="fully_shard(model.embedding)",
        instead="fully_shard(block) for every block",
    )


@case("fsdp_small_units")
def small_units_under_computation_cost_nothing(tmp_path: Path) -> Case:
    small = {"units": 20, "elements": 1 << 18}
    return Case(
        right=traces_of(fsdp(forward_ns=40_000, backward_ns=40_000, **small), tmp_path / "exposed"),
        wrong=traces_of(fsdp(forward_ns=400_000, backward_ns=800_000, **small), tmp_path / "hidden"),
        advice="one unit of several blocks",
        instead="of the step, limit",
    )


@case("fsdp_wait_on_copy")
def offloading_that_is_needed_is_not_ended(tmp_path: Path) -> Case:
    plan = {"offload_ns": 600_000, "copy_ns": 0, **SLOW}
    return Case(
        right=traces_of(fsdp(**plan), tmp_path / "room"),
        wrong=traces_of(fsdp(gpu_bytes=(1 << 30) + (100 << 20), **plan), tmp_path / "full"),
        advice="without offload_policy",
        instead="the device has no room for the shards",
    )


def _waits(name: str, *, python_ns: int = 0, thread: str = "main") -> Evidence:
    """Ten kernels of 60 us; before each a thread waits in ``name`` for the one before; then the host needs 40 us more, and
    ``python_ns`` in no operator."""
    rows: list[Row] = []
    for i in range(10):
        at = i * (110_000 + python_ns)
        rows += [
            launch(at, at + 4_000, i + 1), kernel("ampere_sgemm", at + 5_000, at + 65_000, i + 1),
            call(name, at + 5_000, at + 70_000, thread=thread), op("aten::work", at - 40_000, at + 4_500),
        ]  # fmt: skip
    return by_hand(*rows)


@case("gradient_sync_each_micro_step")
def equal_buckets_of_one_pass_are_no_micro_steps(tmp_path: Path) -> Case:
    """Four reductions of 2 MiB: of a model of 2 MiB in four passes, or of one of 8 MiB in one."""

    def reduces(name: str, elements: int) -> Evidence:
        return with_setup(_equal_buckets(tmp_path / name), JobSetup(parameters=elements))

    return Case(
        right=reduces("four", (2 << 20) // 4),
        wrong=reduces("one", (8 << 20) // 4),
        advice="no_sync",
        instead="one backward pass a step",
    )


def _equal_buckets(folder: Path) -> Evidence:
    (job,) = _buckets(folder).traces
    ranks = []
    for each in job.summary.ranks:
        first = [row for row in each.buckets if row.index == 1]
        rows = tuple(replace(row, index=i, launch_ns=i, size_bytes=2 << 20) for row in first for i in range(4))
        ranks.append(replace(each, buckets=rows, annotations=()))
    return traced(replace(job.summary, ranks=tuple(ranks), collectives=None))


@case("host_sync")
def an_allocator_that_asks_the_driver_is_no_item(_: Path) -> Case:
    return Case(
        right=_waits("cudaStreamSynchronize"),
        wrong=_waits("cudaFree"),
        advice=".item()",
        instead="torch.cuda.empty_cache()",
    )


@case("host_sync")
def an_explicit_synchronisation_is_no_item(_: Path) -> Case:
    return Case(
        right=_waits("cudaStreamSynchronize"),
        wrong=_waits("cudaDeviceSynchronize"),
        advice=".item()",
        instead="remove torch.cuda.synchronize()",
    )


@case("host_sync")
def python_after_a_short_wait_is_no_wait(_: Path) -> Case:
    """The host comes back 5 us after the kernel has ended, and then does something else for 2 ms."""
    return Case(
        right=_waits("cudaStreamSynchronize"),
        wrong=_waits("cudaStreamSynchronize", python_ns=2_000_000),
        advice=".item()",
        instead="after the host waited for it, limit",
    )


@case("host_sync")
def a_thread_in_the_background_may_wait(_: Path) -> Case:
    return Case(
        right=_waits("cudaStreamSynchronize"),
        wrong=_waits("cudaStreamSynchronize", thread="writer"),
        advice=".item()",
        instead="the device idles 0% of the window after the host waited for it",
    )


@case("straggler")
def a_rank_with_longer_batches_has_no_slow_machine(tmp_path: Path) -> Case:
    (job,) = generated(tmp_path, world=4, steps=6, late={2: 900_000}, late_kind="compute").traces

    def computes(share: float) -> Evidence:
        flop = {p.facts.rank: 1e9 * (share if p.facts.rank == 2 else 1) for p in job.summary.ranks}
        ranks = tuple(replace(p, step_flop=flop[p.facts.rank], step_operators=9) for p in job.summary.ranks)
        return traced(replace(job.summary, ranks=ranks))

    return Case(right=computes(1.0), wrong=computes(1.4), advice="check its clocks", instead="batches of equal lengths")


@case("straggler")
def a_rank_that_waits_as_briefly_as_its_peers_is_in_python(tmp_path: Path) -> Case:
    def slower(kind: str) -> Evidence:
        return generated(tmp_path / kind, world=4, steps=6, late={2: 2_000_000}, late_kind=kind)

    return Case(
        right=slower("sync"), wrong=slower("python"), advice="check for .item()", instead="its host launches late"
    )


@case("impossible_figures")
def copies_ahead_of_the_computation_shorten_no_step(_: Path) -> Case:
    """Five steps of ten products of 120 GFLOP, of which an A100 takes 386 us for each; the host runs ahead."""

    def computes(kernel_ns: int, *, copies: bool) -> Evidence:
        rows: list[Row] = []
        for step in range(5):
            at = 300_000 * step
            rows.append(mark(f"ProfilerStep#{step}", at, at + 300_000))
            if copies:
                begin = max(at + 10_000, 400_000 * step)
                rows += [
                    launch(at, at + 2000, 100 * step),
                    copy("Memcpy HtoD", begin, begin + 300_000, 100 * step, stream=30),
                ]
            for i in range(10):
                called, begin, number = at + 10_000 * (i + 1), 400_000 + kernel_ns * (10 * step + i), 100 * step + i + 1
                if i > 3:
                    rows.append(op("autograd::engine::evaluate_function: MmBackward0", called - 500, called + 9000))
                dims, types = "[[4096, 4096], [4096, 3584]]", '["c10::BFloat16", "c10::BFloat16"]'
                rows += [
                    op("aten::mm", called, called + 8000, dims=dims, types=types),
                    launch(called + 1000, called + 3000, number), kernel(BF16, begin, begin + kernel_ns, number),
                ]  # fmt: skip
        return by_hand(*rows, device=A100)

    return Case(
        right=computes(60_000, copies=False),
        wrong=computes(600_000, copies=True),
        advice="is impossible",
        instead="utilisation in traces",
    )


@case("python_overhead")
def a_host_that_waits_for_the_device_is_not_in_python(_: Path) -> Case:
    return Case(
        right=_waits("cudaStreamSynchronize", python_ns=2_000_000),
        wrong=_waits("cudaStreamSynchronize"),
        advice="py-spy",
        instead="of the window, limit",
    )


def _late(launching: str) -> Evidence:
    """Ten kernels of 20 us, launched every 100 us out of an operator that takes all the time."""
    rows: list[Row] = [op("aten::work", 0, 1_000_000)]
    for i in range(10):
        at = i * 100_000
        rows += [
            call(launching, at, at + 5_000, correlation=i + 1), kernel("relu_kernel", at + 6_000, at + 26_000, i + 1),
        ]  # fmt: skip
    return by_hand(*rows)


@case("launch_bound")
def graphs_that_run_already_are_not_advised(_: Path) -> Case:
    return Case(
        right=_late("cudaLaunchKernel"),
        wrong=_late("cudaGraphLaunch"),
        advice="if shapes are constant, replay CUDA graphs",
        instead="CUDA graphs run already",
    )


@case("python_overhead")
def a_host_inside_operators_is_not_in_python(_: Path) -> Case:
    rows: list[Row] = []
    for i in range(10):
        at = i * 100_000
        rows += [
            launch(at, at + 5_000, i + 1), kernel("relu_kernel", at + 6_000, at + 26_000, i + 1),
            op("aten::relu", at - 1_000 if i else 0, at + 5_500),
        ]  # fmt: skip
    return Case(right=by_hand(*rows), wrong=_late("cudaLaunchKernel"), advice="py-spy", instead="of the window, limit")


@case("start_up")
def what_comes_back_in_every_step_is_not_behind_the_first(_: Path) -> Case:
    def loads(*steps: int) -> Evidence:
        ms, at = 1_000_000, 0
        rows: list[Row] = []
        for step in range(6):
            begin = at
            if step in steps:
                rows.append(call("cuModuleLoadData", at, at + 60 * ms))
                at += 60 * ms
            rows += [
                launch(at, at + 5_000, step + 1), op("aten::mm", at, at + 5_000),
                kernel("gemm", at + 5_000, at + 20 * ms, step + 1), mark(f"ProfilerStep#{step}", begin, at + 20 * ms),
            ]  # fmt: skip
            at += 20 * ms
        return by_hand(*rows)

    return Case(right=loads(0), wrong=loads(*range(6)), advice="judge the job by later steps", instead="limit 10%")


@case("long_gap")
def a_gap_in_the_loader_is_no_checkpoint(_: Path) -> Case:
    def stalls(host: str) -> Evidence:
        ms, at = 1_000_000, 0
        rows: list[Row] = []
        for i in range(10):
            middle = at + 50 * ms
            resume = middle + (3_000 if i == 4 else 1) * ms
            rows += [
                launch(at, at + 10, 2 * i), kernel("gemm", at + 20, middle, 2 * i), op("aten::mm", at, at + 10),
                launch(resume - 20, resume - 10, 2 * i + 1), kernel("gemm", resume, resume + 50 * ms, 2 * i + 1),
                op("aten::mm", resume - 20, resume - 10), mark(f"ProfilerStep#{i}", at, resume + 50 * ms),
            ]  # fmt: skip
            if i == 4:
                rows.append(mark(host, middle + ms, resume - ms))
            at = resume + 50 * ms
        return by_hand(*rows)

    return Case(
        right=stalls("save_checkpoint"),
        wrong=stalls("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        advice="async_save",
        instead="the loader stalls",
    )


@case("low_mfu")
def a_precision_that_the_device_lacks(_: Path) -> Case:
    def low(device: str) -> Evidence:
        made = by_hand(*kernels(("volta_sgemm_128x64_nn", 900), (WORK, 100)), device=device)
        used = Utilisation(
            rank=0, device_name=device, dtype="fp32", dtype_source="kernels", peak_flops_per_s=15e12,
            peak_source="datasheet", devices=1, model_flop=0.05 * 15e9, hardware_flop=None, flop_source="shapes",
            flop_incomplete=(), step_ns=1e6, mfu=0.05, hfu=None, steps=(), formula="f", unavailable=None, error=None,
        )  # fmt: skip
        return with_ranks(with_parts(made, window_ns=1_000_000, idle_ns=0), utilisation=used)

    return Case(
        right=low(A100), wrong=low(V100), advice="bf16 autocast or TF32", instead="fp16 autocast with GradScaler"
    )


@case("memory_bandwidth_bound")
def activations_of_16_bits_are_not_halved_again(_: Path) -> Case:
    def moves(dtype: str) -> Evidence:
        name = f"{WORK[:-1]}, at::native::CUDAFunctor_add<{dtype}>>"
        return by_hand(*kernels((name, 600), (BF16, 400)), device=A100)

    return Case(
        right=moves("float"), wrong=moves("c10::BFloat16"), advice="use bf16 activations", instead="fuse these kernels"
    )


@case("no_communication")
def traces_that_name_no_job_may_be_several(tmp_path: Path) -> Case:
    silent = with_parts(generated(tmp_path, world=2), comm_ns=0, exposed_comm_ns=0).traces[0].summary
    return Case(
        right=traced(replace(silent, world_size=2)),
        wrong=traced(replace(silent, world_size=None)),
        advice="in the trace of a job of 2 ranks",
        instead="these may be jobs of one rank",
    )


@case("no_tensor_cores")
def double_precision_is_meant(_: Path) -> Case:
    def multiplies(name: str) -> Evidence:
        return by_hand(*kernels((name, 600), (WORK, 400)), device=V100)

    return Case(
        right=multiplies("volta_sgemm_128x64_nn"),
        wrong=multiplies("volta_dgemm_64x64_nn"),
        advice="mixed precision",
        instead="the products are FP64",
    )


@case("pipeline_imbalance")
def a_stage_with_as_many_kernels_may_have_a_slow_device(tmp_path: Path) -> Case:
    slow = traces_of(pipeline(slow={2: 1.6}), tmp_path)
    summary = slow.traces[0].summary
    more = tuple(
        replace(p, mix=replace(p.mix, calls=2 * p.mix.calls)) if p.facts.rank == 2 and p.mix is not None else p
        for p in summary.ranks
    )
    return Case(
        right=traced(replace(summary, ranks=more)),
        wrong=slow,
        advice="\nmove layers from this stage",
        instead="check its device first",
    )


@case("plan_broken")
def a_step_that_the_capture_cut_breaks_no_plan(tmp_path: Path) -> Case:
    def checked(holds: bool | None, *differences: str) -> Any:
        return ConformanceCheck(
            rank=0, strategy="interleaved", steps=0 if holds is None else 3, planned_per_step=4, launched_in_backward=12,
            overlap_planned=True, holds=holds, differences=differences, certain=bool(differences),
        )  # fmt: skip

    job = generated(tmp_path, world=2)
    return Case(
        right=with_ranks(job, conformance=checked(False, "step 10: missing 1 x all_reduce of 4 bytes")),
        wrong=with_ranks(job, conformance=checked(None, "step 10: missing 1 x all_reduce of 4 bytes")),
        advice="correct the strategy's comm_plan",
        instead="no whole step was recorded",
    )


@case("profiler_overhead")
def a_profiler_that_costs_little_distorts_little(tmp_path: Path) -> Case:
    summary = generated(tmp_path, world=2).traces[0].summary
    traced = traced_step_ns(summary)
    assert traced is not None

    def cell(step_ns: float) -> Evidence:
        timed = made("c", known={"step_ns": Measured(value=step_ns, n=40)})
        return bench(timed, traces=(TraceEvidence(name="c", summary=summary, cell_id="c"),))

    return Case(
        right=cell(traced / 4),
        wrong=cell(traced),
        advice="trust sizes of timed steps",
        instead="profiler; limit",
    )


@case("queued_idle")
def amds_devices_have_tools_of_their_own(_: Path) -> Case:
    def gaps(device: str) -> Evidence:
        return by_hand(*kernels(*[("gemm", 100.0)] * 20, gap_us=120), device=device)

    return Case(right=gaps(A100), wrong=gaps(MI300), advice="nvidia-smi", instead="rocm-smi --showpids")


@case("small_kernels")
def short_kernels_under_long_ones_cost_nothing(_: Path) -> Case:
    """Thirty kernels of 10 us take 300 us of 900 by themselves; on a stream of their own, under a long one, nothing."""
    short = [("void at::native::vectorized_elementwise_kernel<4>", 10.0)] * 30
    apart = by_hand(*kernels(*short, ("ampere_sgemm", 600.0)))
    rows: list[Row] = [op("aten::work", 0, 4_000), launch(0, 50, 1), kernel("ampere_sgemm", 5_000, 905_000, 1)]
    for i in range(30):
        at = 6_000 + 20_000 * i
        rows += [launch(100 * i, 100 * i + 50, i + 2), kernel(short[0][0], at, at + 10_000, i + 2, stream=8)]
    return Case(right=apart, wrong=by_hand(*rows), advice="fuse them", instead="with their gaps, limits")


@case("tensor_parallel_slow_link")
def a_fabric_that_spans_hosts_is_no_fault(tmp_path: Path) -> Case:
    def across(name: str, **plan: Any) -> Evidence:
        return on_hosts(traces_of(tensor(transfer_ns=600_000, **plan), tmp_path / name), "a", "b", "a", "b")

    return Case(
        right=across("slow"),
        wrong=across("nvl72", gradient_ns=600_000),
        advice="make tp the last dimension of the mesh",
        instead="of collectives inside a host",
    )
