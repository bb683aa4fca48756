"""Cells of `bench`: strategies, memory, machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import fake_runs
from tests.bench_evidence import Made, bench, environment, failed, made, profile
from tests.calibration_rows import sweep
from tests.wrong_advice import Case, case

from stepscope.predict.specs import specs_of
from stepscope.records.environment import GpuFact, TorchFact
from stepscope.records.nouns import Measured
from stepscope.results.evidence import Evidence

GIB = 2**30
CUDA = {"device": "cuda", "backend": "nccl"}
GPT = {"workload": "gpt", "model": {"num_layers": 4, "d_model": 128, "max_seq_len": 64, "vocab_size": 1024}}
DEEP = {
    "workload": "deep_mlp", "model": {"depth": 16, "width": 512, "bias": False}, "loss": "mse", "momentum": 0.0,
}  # fmt: skip


def _torch(*, bf16: bool = True, devices: int = 8) -> TorchFact:
    return TorchFact(
        version="2.13.0", cuda_version="13.0", nccl_version=None, hip_version=None, gloo=True, nccl=True,
        cuda_available=True, device_count=devices, device_names=("a GPU",) * devices,
        device_memory_bytes=(2**34,) * devices, bf16=bf16,
    )  # fmt: skip


def _wire(bytes_per_s: float) -> tuple[Any, ...]:
    return tuple(sweep(alpha_ns=1e5, beta_bytes_per_s=bytes_per_s))


@case("amp_communication")
def hooks_belong_to_ddp(_: Path) -> Case:
    def amp(strategy: str) -> Evidence:
        known = {"comm_bytes_per_step": 4 * 1_345_000}
        return bench(made("a", precision="amp_bf16", known=known, comm_ms=40, strategy=strategy))

    return Case(
        right=amp("ddp"), wrong=amp("fsdp2"), advice="a hook that sends", instead="keep parameters and gradients"
    )


@case("amp_communication")
def a_device_without_bf16_is_told_of_fp16(_: Path) -> Case:
    def amp(*, bf16: bool) -> Evidence:
        known = {"comm_bytes_per_step": 4 * 1_345_000}
        cell = made("a", precision="amp_fp16", known=known, comm_ms=40, **CUDA)
        return bench(cell, environment=environment(torch=_torch(bf16=bf16)))

    return Case(right=amp(bf16=True), wrong=amp(bf16=False), advice="BF16", instead="hook=[none,fp16]")


@case("amp_communication")
def few_bytes_cost_latency(_: Path) -> Case:
    def amp(sent: int) -> Evidence:
        known = {"comm_bytes_per_step": sent, "num_parameters": sent // 4}
        return bench(made("a", precision="amp_bf16", known=known, comm_ms=40))

    return Case(
        right=amp(8 << 20), wrong=amp(64 << 10), advice="halve the bytes", instead="which fewer bytes do not cut"
    )


@case("batch_shrank")
def a_mesh_that_was_measured_with_the_larger_batch(_: Path) -> Case:
    def cell(strategy: str, batch: int, *, mesh: dict[str, int] | None = None, accumulation: int = 1) -> Made:
        shape = {"mesh": mesh or {}, "world_size": 4, "micro_batch": 4, "accumulation": accumulation}
        name = f"{strategy}{accumulation}"
        return made(name, strategy=strategy, global_batch=batch, batch_rule="micro_batch", **shape, **GPT)

    mesh = {"dp": 2, "tp": 2}
    fewer = (cell("ddp", 16), cell("tensor_parallel", 8, mesh=mesh))
    return Case(
        right=bench(*fewer),
        wrong=bench(*fewer, cell("tensor_parallel", 16, mesh=mesh, accumulation=2)),
        advice="--set base.accumulation=2",
        instead="none beside a larger batch",
    )


@case("bucket_size")
def a_size_that_was_measured_and_is_no_faster(_: Path) -> Case:
    backward = profile(fake_runs.spec("p", **DEEP), backward_ms=100)

    def cell(cap: float, comm_ms: float) -> Made:
        return made(f"d{cap:g}", strategy_options={"bucket_cap_mb": cap}, profile=backward, comm_ms=comm_ms, **DEEP)

    alone = cell(25.0, 30)
    others = [cell(cap, 31) for cap in (1.0, 2.0, 4.0, 8.0)]
    return Case(
        right=bench(alone, comm=_wire(2e8)),
        wrong=bench(alone, *others, comm=_wire(2e8)),
        advice="is too large",
        instead="measured no faster",
    )


@case("checkpointing_without_need")
def activations_that_would_not_fit(_: Path) -> Case:
    def measured(kept: int) -> Evidence:
        def cell(mode: str, ms: float, activations: int) -> Made:
            return made(
                mode, activation_checkpointing=mode, phases={"forward": ms}, known={"peak_memory_bytes": GIB},
                summary={"memory": {"activations": activations}}, **GPT,
            )  # fmt: skip

        cells = (cell("full", 58, GIB), cell("none", 30, kept))
        return bench(*cells, environment=environment(memory_bytes=16 * GIB))

    return Case(
        right=measured(2 * GIB),
        wrong=measured(7 * GIB),
        advice="keep all activations",
        instead="in use, limit",
    )


@case("compute_bound")
def computation_that_grew_with_the_ranks_is_no_good_news(_: Path) -> Case:
    def scaled(samples_per_s: float) -> Evidence:
        one = made("one", strategy="single", world_size=1, known={"samples_per_s": Measured(value=100.0)})
        known = {"baseline_id": "one", "samples_per_s": Measured(value=samples_per_s)}
        return bench(one, made("c", world_size=4, known=known))

    return Case(
        right=scaled(380.0),
        wrong=scaled(110.0),
        advice="or add ranks",
        instead="which grew with the ranks: scaling is poor",
    )


@case("data_loading")
def synthetic_batches_need_no_decoding(_: Path) -> Case:
    def waits(dataset: str) -> Evidence:
        return bench(made("c", phases={"data_wait": 60.0}, dataset=dataset))

    return Case(
        right=waits("mnist"),
        wrong=waits("synthetic"),
        advice="decode and tokenise in advance",
        instead="synthetic batches are made in memory",
    )


@case("failed_cells")
def a_cell_that_failed_fails_again(_: Path) -> Case:
    def ended(status: str) -> Evidence:
        return bench(made("a"), failed("b", status, "ValueError: 7 heads do not divide 32", strategy="naive"))

    return Case(
        right=ended("interrupted"),
        wrong=ended("error"),
        advice="\nrerun with the same folder",
        instead="fix the cause above, then rerun",
    )


@case("near_oom")
def activations_that_are_recomputed_already(_: Path) -> Case:
    gpu = GpuFact(
        index=0, name="a GPU", uuid=None, memory_bytes=16 * GIB, compute_capability="8.0", driver_version=None
    )

    def out(mode: str) -> Evidence:
        cell = failed("out", "oom", "rank 0: CUDA out of memory", activation_checkpointing=mode, **GPT, **CUDA)
        return bench(cell, environment=environment(gpus=(gpu,)))

    return Case(right=out("none"), wrong=out("full"), advice="recompute activations", instead="halve the micro-batch")


@case("naive_synchronisation")
def overlap_that_was_measured_and_gains_nothing(_: Path) -> Case:
    naive = made("n", strategy="naive", comm_ms=80)
    return Case(
        right=bench(naive),
        wrong=bench(naive, made("d", comm_ms=82)),
        advice="reduce during the backward pass",
        instead="measured: ddp",
    )


@case("optimizer_heavy")
def what_is_sharded_is_not_told_to_shard(_: Path) -> Case:
    def slow(strategy: str) -> Evidence:
        return bench(made("c", phases={"optimizer": 50.0}, world_size=4, optimizer="adamw", strategy=strategy))

    return Case(right=slow("ddp"), wrong=slow("zero1"), advice="shard the update", instead="update less often")


@case("optimizer_heavy")
def a_fixed_global_batch_has_to_grow_with_the_accumulation(_: Path) -> Case:
    """Twice the accumulation alone would halve the micro-batch, and every sample cost as much of the update as before."""

    def slow(rule: str) -> Evidence:
        return bench(made("c", phases={"optimizer": 50.0}, batch_rule=rule))

    return Case(
        right=slow("micro_batch"),
        wrong=slow("global_batch"),
        advice="base.accumulation=2\n",
        instead="base.accumulation=2 --set base.global_batch=128",
    )


@case("oversubscription")
def threads_of_ranks_on_gpus_sleep(_: Path) -> Case:
    def threads(**device: str) -> Evidence:
        cell = made("c", world_size=4, summary={"num_threads": 8}, **device)
        return bench(cell, environment=environment(torch=_torch()))

    return Case(
        right=threads(), wrong=threads(**CUDA), advice="step times depend on the scheduler", instead="likely harmless"
    )


@case("poor_overlap")
def units_have_no_bucket_size(_: Path) -> Case:
    def exposed(strategy: str) -> Evidence:
        return bench(made("d", comm_ms=30, strategy=strategy, **DEEP))

    return Case(
        right=exposed("ddp"), wrong=exposed("fsdp2"), advice="strategy_options.bucket_cap_mb", instead="try other units"
    )


@case("sharding_saves_little")
def sharding_that_costs_no_time(_: Path) -> Case:
    def cell(strategy: str, ms: float) -> Made:
        plan = specs_of(fake_runs.spec("x", strategy=strategy)).memory_plan
        whole = specs_of(fake_runs.spec("x")).memory_plan.total_bytes
        memory = {
            "parameters": plan.parameter_bytes, "gradients": plan.gradient_bytes, "optimizer": plan.optimizer_bytes,
            "gathered": plan.gathered_bytes, "activations": 30 * whole,
        }  # fmt: skip
        return made(strategy, strategy=strategy, phases={"forward": ms}, summary={"memory": memory})

    return Case(
        right=bench(cell("fsdp2", 63), cell("ddp", 30)),
        wrong=bench(cell("fsdp2", 30), cell("ddp", 30)),
        advice="keep the whole model on each rank",
        instead="or what it saves is free or needed",
    )


@case("straggler")
def the_only_host_cannot_be_left_out(_: Path) -> Case:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 40 * (rank == 2)

    def slow(*hosts: str) -> Evidence:
        return bench(made("c", world_size=4, own=own, hosts=hosts))

    return Case(
        right=slow("a", "a", "b", "b"), wrong=slow("a", "a", "a", "a"), advice="exclude", instead="a job without it"
    )


@case("straggler")
def more_samples_are_no_slow_machine(_: Path) -> Case:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 40 * (rank == 2)

    even = made("c", world_size=4, own=own, hosts=("a", "b", "c", "d"))
    ranks = [
        replace(each, steps=tuple(replace(s, samples=2 * s.samples) for s in each.steps)) if rank == 2 else each
        for rank, each in enumerate(even.result.samples)
    ]
    uneven = replace(even, result=replace(even.result, samples=tuple(ranks)))
    return Case(
        right=bench(even), wrong=bench(uneven), advice="throttled clocks", instead="give every rank as many samples"
    )
