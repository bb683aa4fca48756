"""Evidence on which the figure that a rule compares with one of its limits has any value asked for.

``border("rule_key", "limit", ...)`` registers a function of that value and a folder; test_borders.py asks for values just
below and just above each limit as its rule declares it. Builders that tests of rules use too are public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench_evidence import Made, bench, environment, made, profile
from tests.calibration_rows import sweep as priced
from tests.comm_rows import MIB, SIZES, collective, pairs, row, sweep
from tests.evidence import epochs, evidence, rate, run, step
from tests.fake_runs import spec
from tests.grids import Grid, write_grid
from tests.hand_events import Row, kernel, launch, mark, op
from tests.memory_pickles import alloc, dump, event, free, live, release, segment
from tests.sharded_jobs import experts, fsdp, on_hosts, pipeline, tensor, traces_of
from tests.trace_builder import Clock
from tests.trace_evidence import by_hand, generated, kernels, traced, with_idle, with_parts, with_ranks

from stepscope.diagnose.rules.profiler_overhead import traced_step_ns
from stepscope.machine.peaks.lookup import find
from stepscope.predict.specs import specs_of
from stepscope.records.comm import Arrivals
from stepscope.records.comparison import ScalingBudget, ScalingPart, ScalingReading
from stepscope.records.environment import EnvironmentRecord, GpuFact
from stepscope.records.imported import MachineReading
from stepscope.records.nouns import Measured
from stepscope.records.profile import JobSetup
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_path import StragglerReport
from stepscope.records.trace_rules import GradientSync, HostLateness, SyncPlace
from stepscope.records.trace_summary import RankPass
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.learning import quality
from stepscope.results.open import load_evidence
from stepscope.results.scaling import rate as rated
from stepscope.strategies import memory
from stepscope.traces.job import analyse_job

Maker = Callable[[float, Path], Evidence]


@dataclass(frozen=True, kw_only=True)
class Border:
    """above: the rule fires beyond the limit; else below it. by: how far from the limit, of itself, evidence can be told
    from it. severity: with which it fires there; None: with any."""

    rule: str
    limit: str
    make: Maker
    above: bool
    by: float
    severity: str | None


BORDERS: list[Border] = []


def border(
    rule: str, limit: str, *, above: bool = True, by: float = 1e-3, severity: str | None = None
) -> Callable[[Maker], Maker]:
    def registered(make: Maker) -> Maker:
        BORDERS.append(Border(rule=rule, limit=limit, make=make, above=above, by=by, severity=severity))
        return make

    return registered


def share(rule: str, make: Maker, *, by: float = 1e-3) -> None:
    """Both limits of a share of the window."""
    border(rule, "warning", by=by)(make)
    border(rule, "problem", by=by, severity="problem")(make)


# Idle time, copies and kernels of traces

A100, V100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"
FP32, VOLTA_FP32, TENSOR = (
    "ampere_sgemm_128x64_nn",
    "volta_sgemm_128x64_nn",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
)
MOVES = "void at::native::vectorized_elementwise_kernel<4>"
PRODUCT = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
MS = 1_000_000


def _idle(cause: str) -> Maker:
    return lambda at, folder: with_idle(generated(folder, world=2), **{cause: at})


for _rule, _cause in {
    "data_loading": "data", "host_sync": "sync", "launch_bound": "host_late", "queued_idle": "dependency"
}.items():  # fmt: skip
    share(_rule, _idle(_cause))


def _kernels(device: str | None = None, **named: tuple[str, Callable[[float], float]]) -> Maker:
    return lambda at, _: by_hand(*kernels(*((name, of(at)) for name, of in named.values())), device=device)


share("exposed_memcpy", _kernels(a=(PAGEABLE, lambda at: 1000 * at), b=(MOVES, lambda at: 1000 - 1000 * at)))
share("fp32_matmul", _kernels(A100, a=(FP32, lambda at: 1000 * at), b=(MOVES, lambda at: 1000 - 1000 * at)))
share("no_tensor_cores", _kernels(V100, a=(VOLTA_FP32, lambda at: 1000 * at), b=(MOVES, lambda at: 1000 - 1000 * at)))
border("no_tensor_cores", "tensor cores", above=False)(
    _kernels(V100, a=(TENSOR, lambda at: 500 * at), b=(VOLTA_FP32, lambda at: 500 - 500 * at), c=(MOVES, lambda _: 500))
)
border("memory_bandwidth_bound", "kernels")(
    _kernels(a=(MOVES, lambda at: 1000 * at), b=(PRODUCT, lambda at: 1000 - 1000 * at))
)
share(
    "memory_bandwidth_bound",
    _kernels(a=(MOVES, lambda at: 1000 * at), b=("Memcpy HtoD (Pinned -> Device)", lambda at: 1000 - 1000 * at)),
)


@border("small_kernels", "number", by=0.02)
def _short(at: float, _: Path) -> Evidence:
    short = round(100 * at)
    return by_hand(*kernels(*[("a_elementwise", 10.0)] * short, *[("b_elementwise", 10.001)] * (100 - short)))


@border("python_overhead", "warning", by=0.01)
def _python(at: float, _: Path) -> Evidence:
    return python_of(round(at * MS), round(at * MS))


@border("python_overhead", "of late", by=0.01)
def _of_late(at: float, _: Path) -> Evidence:
    return python_of(200_000, round(200_000 / at - 200_000))


border("python_overhead", "sure on CPUs", severity="problem")(
    lambda at, folder: with_idle(generated(folder, world=1, device="gloo"), outside_operators=at)
)


def late_host(*, inside_operators: bool) -> Evidence:
    """Ten kernels of 20 us, a launch every 100 us; the host is in Python in between, or in one long operator."""
    rows = []
    for i in range(10):
        at = i * 100_000
        rows += [launch(at, at + 5_000, i + 1), kernel("relu_kernel", at + 6_000, at + 26_000, i + 1)]
        begin = at - 90_000 if inside_operators else at - 1_000
        rows.append(op("aten::relu", max(0, begin), at + 5_500))
    return by_hand(*rows)


def python_of(python_ns: int, operator_ns: int) -> Evidence:
    """Of a window of 1 ms, so much waits for Python, and for operators."""
    job = with_parts(late_host(inside_operators=True), window_ns=MS)
    late = HostLateness(rank=0, late_ns=python_ns + operator_ns, operator_ns=operator_ns, python_ns=python_ns)
    return with_ranks(job, host_lateness=late)


def gaps(*gaps_ms: float, marked: bool = True, host: str | None = None) -> list[Row]:
    """A step of 100 ms of kernels a gap, with that gap in its middle; the host launches the second half behind it."""
    rows: list[Row] = []
    at = 0
    for i, gap_ms in enumerate(gaps_ms):
        begin, middle = at, at + 50 * MS
        resume = middle + round(gap_ms * MS)
        at = resume + 50 * MS
        rows += [
            launch(begin, begin + 10, 2 * i), kernel("gemm", begin + 20, middle, 2 * i), op("aten::mm", begin, begin + 10),
            launch(resume - 20, resume - 10, 2 * i + 1), kernel("gemm", resume, at, 2 * i + 1),
            op("aten::mm", resume - 20, resume - 10),
        ]  # fmt: skip
        if marked:
            rows.append(mark(f"ProfilerStep#{i + 7}", begin, at))
        if host and gap_ms > 500:
            rows.append(mark(host, middle + MS, resume - MS))
    return rows


border("start_up", "warning")(_idle("start_up"))
share("long_gap", lambda at, _: by_hand(*gaps(*[1.0] * 9, 1009 * at / (1 - at))), by=0.05)


def low_mfu(mfu: float | None, *rows: tuple[str, float], **more: Any) -> Evidence:
    """A window of 1000 us: 500 in products, 100 in other kernels, the rest idle unless ``more`` says otherwise."""
    made_ = by_hand(*kernels(*(rows or ((PRODUCT, 500), (MOVES, 100)))), device=str(more.get("device", A100)))
    made_ = with_parts(made_, window_ns=MS, exposed_comm_ns=0, exposed_memory_ns=0, idle_ns=400_000)
    return with_ranks(made_, utilisation=used(mfu, **more))


def used(mfu: float | None, *, device: str = A100, dtype: str = "bf16", peak: float = 312e12) -> Utilisation:
    flop = None if mfu is None else mfu * peak * 1e-3
    return Utilisation(
        rank=0, device_name=device, dtype=dtype, dtype_source="kernels", peak_flops_per_s=peak, peak_source="datasheet",
        devices=1, model_flop=flop, hardware_flop=None, flop_source="shapes", flop_incomplete=(), step_ns=1e6, mfu=mfu,
        hfu=None, steps=(), formula="f", unavailable=None if mfu else "FLOP unknown: no shapes", error=None,
    )  # fmt: skip


border("low_mfu", "low", above=False)(lambda at, _: low_mfu(at))
border("compute_bound", "in a trace")(
    lambda at, folder: with_parts(generated(folder, world=1), window_ns=MS, compute_ns=round(at * MS))
)

# Communication in traces


@border("exposed_communication", "warning")
@border("exposed_communication", "problem", severity="problem")
def _exposed(at: float, folder: Path) -> Evidence:
    ns = round(at * MS)
    return with_parts(generated(folder, world=2), window_ns=MS, comm_ns=2 * ns, exposed_comm_ns=ns)


NONE = SyncPlace(positions=(), total_ns=0, exposed_ns=0)


@border("naive_synchronisation", "in a trace")
def _naive(at: float, folder: Path) -> Evidence:
    job = with_parts(generated(folder, world=1), window_ns=MS)
    after = SyncPlace(positions=tuple(range(12)), total_ns=round(at * MS), exposed_ns=round(at * MS))
    return with_ranks(job, gradient_sync=GradientSync(rank=0, steps=3, before=NONE, inside=NONE, after=after))


def bucket(each: RankPass, step_: int | None, index: int, size: int, *, exposed_ns: int, **known: Any) -> BucketRow:
    """A reduction of DDP's on this rank; ready and launched when it starts."""
    start, taken, members = known.get("start_ns", 0), known.get("taken_ns", 1), known.get("members")
    return BucketRow(
        rank=each.facts.rank, step=step_, index=index, wrapper="ddp", op="all_reduce", dtype="Float", size_bytes=size,
        members=members, members_source=None, members_unavailable=None, ready_ns=start, launch_ns=start, start_ns=start,
        end_ns=start + taken, waited_ns=0, exposed_ns=exposed_ns,
    )  # fmt: skip


def bucketed(
    folder: Path,
    *exposed_ns: int,
    steps: int = 3,
    size: int = 8 << 20,
    apart_ns: int = 400_000,
    members: tuple[str, ...] | None = None,
) -> Evidence:
    """Two ranks, steps of 1 ms, buckets of 1 MiB and a last one of ``size`` whose exposed parts these are; rank 1 waits 0.2
    ms more in each. Each is ready when it starts, ``apart_ns`` after the one before; what is not exposed takes 1 us."""
    summary = generated(folder, world=2, steps=steps).traces[0].summary
    ranks = []
    for each in summary.ranks:
        rows = tuple(
            bucket(
                each, s.step, i, size if i == len(exposed_ns) - 1 else MIB, exposed_ns=ns + 200_000 * each.facts.rank,
                members=members, start_ns=apart_ns * i, taken_ns=max(ns, 1000),
            )
            for s in each.steps
            for i, ns in enumerate(exposed_ns)
        )  # fmt: skip
        timed = tuple(replace(s, parts=replace(s.parts, window_ns=MS)) for s in each.steps)
        ranks.append(replace(each, buckets=rows, steps=timed))
    return traced(replace(summary, ranks=tuple(ranks)))


border("exposed_tail_bucket", "of the step", by=0.01)(lambda at, folder: bucketed(folder, 0, round(at * MS) + 380))
border("exposed_tail_bucket", "of exposed")(
    lambda at, folder: bucketed(folder, *[round(100_000 * (1 / at - 1) / 3)] * 3, 100_000)
)


def accumulated(
    folder: Path, passes: int, *, exposed_ns: int = 50_000, waited_ns: int = 0, frameworks: tuple[str, ...] = ("ddp",)
) -> Evidence:
    """Two ranks, steps of 1 ms; each pass reduces 1 and 8 MiB, and each reduction exposes this much, more on rank 1."""
    summary = generated(folder, world=2, steps=3, overlap=False, transfer_ns=300_000).traces[0].summary
    ranks = []
    for each in summary.ranks:
        rows = tuple(
            bucket(each, s.step, i, (MIB, 8 * MIB)[i % 2], exposed_ns=exposed_ns + waited_ns * each.facts.rank, start_ns=i)
            for s in each.steps
            for i in range(2 * passes)
        )  # fmt: skip
        timed = tuple(replace(s, parts=replace(s.parts, window_ns=MS)) for s in each.steps)
        facts = replace(each.facts, setup=JobSetup(parameters=9 * MIB // 4), frameworks=frameworks)
        ranks.append(replace(each, buckets=rows, steps=timed, facts=facts, annotations=()))
    return traced(replace(summary, ranks=tuple(ranks)))


border("gradient_sync_each_micro_step", "of the step")(
    lambda at, folder: accumulated(folder, 2, exposed_ns=round(at * MS / 2))
)
border("expert_skew", "hot", by=0.03)(
    lambda at, folder: traces_of(experts(hot={3: 3 * at / (4 - at)}, forward_ns=400_000, backward_ns=800_000), folder)
)
COPIES = {"forward_ns": 1_000_000, "backward_ns": 2_000_000, "copy_ns": 0, "optimizer_ns": 0}
border("fsdp_wait_on_copy", "of the step", by=0.15)(
    lambda at, folder: traces_of(fsdp(copy_out_ns=round(1_580_000 * at), **COPIES), folder)
)
SLOW = {"forward_ns": 1_000_000, "backward_ns": 2_000_000}
border("fsdp_root_unit", "of the bytes", by=0.01)(
    lambda at, folder: traces_of(fsdp(root=round(at / (1 - at) * 6 * (16 << 20)), **SLOW), folder)
)
border("fsdp_small_units", "small", above=False, by=1e-4)(
    lambda at, folder: traces_of(fsdp(elements=round(at / 16) * 4, forward_ns=40_000, backward_ns=40_000), folder)
)
border("fsdp_regathers", "room", above=False)(
    lambda at, folder: traces_of(fsdp(gpu_bytes=round(5 * (1 << 29) / at), elements=64 << 20, **SLOW), folder)
)
border("fsdp_no_prefetch", "late", by=0.3)(
    lambda at, folder: traces_of(
        fsdp(units=5, keep=True, late_units=tuple(range(1, 1 + round(4 * at))), **SLOW), folder
    )
)
ACROSS = ("a", "b", "a", "b")
"""Ranks 0 and 1 form a group, 2 and 3 another: none is on one host. Ranks 0 and 2, 1 and 3 share gradients inside one."""
border("tensor_parallel_slow_link", "slow", above=False, by=0.03)(
    lambda at, folder: on_hosts(traces_of(tensor(transfer_ns=round(100_000 / at)), folder), *ACROSS)
)
border("pipeline_imbalance", "slow", by=0.05)(lambda at, folder: traces_of(pipeline(slow={1: at}), folder))


def staged(stages: int, micro_batches: int, **settings: Any) -> Evidence:
    known = {"pipeline_parallel": stages, "micro_batches": micro_batches, **settings}
    return evidence(run("a", ranks=stages, settings=known))


border("pipeline_bubble", "bubble", by=0.1)(lambda at, _: staged(2, round(1 / at - 1)))


def waited(folder: Path, waiting: float, *, steps: int, pattern: str = "rotating", world: int = 4) -> Evidence:
    """Ranks that wait for each other, none of them named."""
    summary = generated(folder, world=world).traces[0].summary
    window = sum(p.budget.parts.window_ns for p in summary.ranks if p.budget)
    report = StragglerReport(
        stragglers=(), pattern=pattern, skew_ns=1, waiting_ns=round(waiting * window + 0.5), instances=12, steps=steps,
        text=f"no straggler over 12 collectives in {steps} steps",
    )  # fmt: skip
    return traced(replace(summary, stragglers=report))


border("straggler", "waiting")(lambda at, folder: waited(folder, at, steps=100))
border("straggler", "waiting of few steps", severity="warning")(lambda at, folder: waited(folder, at, steps=3))


def slower(rank: int, factor: float, part: str = "backward_compute") -> Callable[[int, int, dict[str, float]], None]:
    def own(which: int, step_: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        if which == rank:
            phases[part] *= factor

    return own


border("straggler", "steps", by=0.05)(lambda at, _: bench(made("c", own=slower(1, 2), steps=round(at))))
border("straggler", "excess", by=0.1)(  # 60 of 97 ms are backward
    lambda at, _: bench(made("c", own=slower(1, 1 + at * 97 / 60), jitter=1e-4))
)


def arrived(late_calls: int, late_ns: float, transfer_ns: float) -> Evidence:
    """Rank 2 of 4 comes last."""
    late = Arrivals(
        communicator="0x1", hosts=("a", "a", "b", "b"), calls=40, late_calls=(0, 0, late_calls, 0),
        late_ns=(0.0, 0.0, late_ns, 0.0), transfer_ns=transfer_ns,
    )  # fmt: skip
    return evidence(arrivals=(late,))


border("straggler", "calls", by=0.1)(lambda at, _: arrived(round(at), 5e6, 5e6))
border("straggler", "late share")(lambda at, _: arrived(30, at * 1e9, (1 - at) * 1e9))


def grid(folder: Path, excess: float, *, steps: int) -> Evidence:
    """Rank 5 of 8 on 2 stages computes longer than the three others of its stage."""
    made_of = Grid(stages=2, replicas=4, micro_batches=4, steps=steps, slow={5: 1 + excess}, noise=0.0)
    return traced(analyse_job(write_grid(made_of, folder)))


border("straggler", "grid excess", by=0.1, severity="problem")(lambda at, folder: grid(folder, at, steps=3))
border("straggler", "grid step", by=0.1, severity="problem")(lambda at, folder: grid(folder, at, steps=1))
border("straggler", "steps", by=0.05, severity="warning")(lambda at, folder: waited(folder, 0.2, steps=round(at)))
border("clock_skew", "offset", by=0.25)(
    lambda at, folder: generated(folder, world=2, steps=6, clocks={1: Clock(offset_ns=round(at))})
)


def traced_cell(folder: Path, *, longer: float, idle: float = 0.0) -> Evidence:
    """A cell whose traced step takes ``longer`` times as long as a timed one; idle: of the trace, for late launches."""
    alone = generated(folder, world=2)
    summary = (with_idle(alone, host_late=idle) if idle else alone).traces[0].summary
    whole = traced_step_ns(summary)
    assert whole is not None
    timed = Measured(value=whole / longer, low=whole / longer * 0.99, high=whole / longer * 1.01, n=40)
    return bench(made("c", known={"step_ns": timed}), traces=(TraceEvidence(name="c", summary=summary, cell_id="c"),))


border("profiler_overhead", "share")(lambda at, folder: traced_cell(folder, longer=1 / (1 - at)))

# Cells of bench: 97 ms a step beside what takes its share

FULL = {"comm_bytes_per_step": 4 * 1_345_000}
DEEP = {
    "workload": "deep_mlp", "model": {"depth": 16, "width": 512, "bias": False}, "loss": "mse", "momentum": 0.0
}  # fmt: skip


def beside(rest_ms: float, at: float) -> float:
    """What takes this share of the step beside so many ms."""
    return rest_ms * at / (1 - at)


border("amp_communication", "matters", by=0.05, severity="warning")(
    lambda at, _: bench(made("a", precision="amp_fp16", known=FULL, comm_ms=beside(97, at), jitter=0))
)
border("amp_communication", "small", severity="warning")(
    lambda at, _: bench(
        made("a", precision="amp_bf16", comm_ms=40, known={"comm_bytes_per_step": at, "num_parameters": at // 4})
    )
)
border("compute_bound", "other", above=False, by=0.1)(lambda at, _: bench(made("c", comm_ms=beside(97, at), jitter=0)))
border("data_loading", "step", by=0.02)(lambda at, _: bench(made("c", phases={"data_wait": beside(99, at)}, jitter=0)))
border("data_loading", "problem of a step", by=0.02, severity="problem")(
    lambda at, _: bench(made("c", phases={"data_wait": beside(99, at)}, jitter=0))
)
border("optimizer_heavy", "share", by=0.02)(
    lambda at, _: bench(made("c", phases={"optimizer": beside(95, at)}, jitter=0))
)
border("naive_synchronisation", "share", by=0.05)(
    lambda at, _: bench(made("n", strategy="naive", comm_ms=beside(97, at), jitter=0))
)


def wire(*, latency_ms: float, bytes_per_s: float) -> tuple[Any, ...]:
    """Half of the latency for each of a ring's two steps."""
    return tuple(priced(alpha_ns=latency_ms * 5e5, beta_bytes_per_s=bytes_per_s))


def bucket_cell(name: str, cap: float | None, *, comm_ms: float = 30, **changes: Any) -> Made:
    backward = profile(spec("p", **DEEP), backward_ms=100)
    options = {"strategy_options": {"bucket_cap_mb": cap}, "profile": backward, "comm_ms": comm_ms}
    return made(name, **(DEEP | options | changes))


border("bucket_size", "gain", by=0.3)(  # one bucket of 16 MiB after backward, of a step of about 138 ms
    lambda at, _: bench(bucket_cell("d", 25.0), comm=wire(latency_ms=0.01, bytes_per_s=16 * MIB / (0.138 * at)))
)
border("poor_overlap", "exposed", by=0.05)(
    lambda at, _: bench(
        made(
            "d",
            comm_ms=beside(97, at),
            jitter=0,
            profile=profile(spec("p", **DEEP)),
            **DEEP,
            strategy_options={"bucket_cap_mb": 1.0},
        ),
        comm=tuple(priced(alpha_ns=1000, beta_bytes_per_s=1e9)),
    )
)
border("oversubscription", "cores", by=0.25)(
    lambda at, _: bench(
        made("c", world_size=2, summary={"num_threads": round(4 * at)}), environment=environment(usable_cores=8)
    )
)
border("oversubscription", "delayed", by=0.02)(
    lambda at, _: bench(
        made("c", world_size=2, summary={"run_delay_fraction": at}), environment=environment(usable_cores=8)
    )
)
GPT = {"workload": "gpt", "model": {"num_layers": 4, "d_model": 128, "max_seq_len": 64, "vocab_size": 1024}}
border("checkpointing_without_need", "room", above=False, by=0.03)(
    lambda at, _: bench(
        made("full", activation_checkpointing="full", known={"peak_memory_bytes": round(at * 2**33)}, **GPT),
        environment=environment(memory_bytes=2**34),
    )
)


def held(strategy: str, *, activations: int, ms: float = 97.0, **cell: Any) -> Made:
    """A cell whose ranks hold what their strategy plans, and so many bytes of activations."""
    plan = specs_of(spec("x", strategy=strategy, **cell)).memory_plan
    counted = {
        "parameters": plan.parameter_bytes, "gradients": plan.gradient_bytes, "optimizer": plan.optimizer_bytes,
        "gathered": plan.gathered_bytes, "activations": activations,
    }  # fmt: skip
    return made(strategy, strategy=strategy, phases={"forward": ms - 67.0}, summary={"memory": counted}, **cell)


@border("sharding_saves_little", "little", above=False, by=0.01)
def _little(at: float, _: Path) -> Evidence:
    specs = specs_of(spec("x", strategy="fsdp2"))
    whole, plan = memory(specs.facts, specs.setting).total_bytes, specs.memory_plan
    kept = plan.parameter_bytes + plan.gradient_bytes + plan.optimizer_bytes + plan.gathered_bytes
    return bench(held("fsdp2", activations=round((whole - kept) / at - whole)))


H100 = {"device": "cuda", "hardware": "NVIDIA H100 80GB HBM3", "precision": "fp32", "micro_batch": 16}
border("near_oom", "share")(
    lambda at, _: evidence(run("a", peak_memory_bytes=round(at * find(H100["hardware"]).total_bytes), **H100))
)

# Runs of any tool


def exposed(share_: float, **known: Any) -> TrainingRun:
    """4 ranks, a step of 100 ms."""
    return run("b", **{"ranks": 4, **known}, step_ns=step(100), exposed_comm_ns=step(100 * share_))


border("communication_bound", "exposed")(lambda at, _: evidence(exposed(at)))


def scaled(at: float, _: Path, **known: Any) -> Evidence:
    """4 ranks with this efficiency."""
    return evidence(run("a", samples_per_s=rate(100)), run("b", ranks=4, samples_per_s=rate(400 * at), **known))


border("communication_bound", "efficiency", above=False)(lambda at, _: scaled(at, _, micro_batch=8))
border("good_scaling", "efficiency")(scaled)
border("negative_scaling", "speedup", above=False)(lambda at, _: scaled(at / 4, _))
border("impossible_figures", "efficiency")(scaled)
border("impossible_figures", "mfu")(lambda at, _: evidence(run("a", settings={"mfu": at})))
border("impossible_figures", "contradiction")(
    lambda at, _: evidence(run("a", global_batch=64, step_ns=step(100), samples_per_s=rate(640 * at)))
)


def budget(efficiency: float, *, is_traced: bool = True, comm: float = 1.0, parts: bool = True) -> Evidence:
    """4 ranks against 1, a step of 10 ms; ``comm`` of the loss is exposed communication, the rest compute."""
    lost = 10e6 * (1 - efficiency)

    def part(key: str, of_loss: float) -> ScalingPart:
        ns = of_loss * lost
        return ScalingPart(key=key, base_ns=0, ideal_ns=0, run_ns=ns, lost_ns=ns, share=of_loss)

    reading = ScalingReading(
        scaling="strong", speedup=4 * efficiency, low=None, high=None, efficiency=efficiency,
        rating=rated(4 * efficiency, world_size=4), ideal_ns=10e6 - lost, lost_ns=lost,
        parts=(part("exposed_comm", comm), part("compute", 1 - comm)) if parts else (),
    )  # fmt: skip
    found = ScalingBudget(
        base="one", run="four", base_world_size=1, world_size=4, unit="step", basis="mean of 8 traced steps",
        base_time=Measured(value=40e6 * efficiency), time=Measured(value=10e6), decided_by="shapes", readings=(reading,),
        no_interval="one sample each: no interval", traced=is_traced,
    )  # fmt: skip
    return Evidence(sources=(), scaling_budgets=(found,))


border("scaling_loss", "good", above=False, severity="warning")(lambda at, _: budget(at))
border("scaling_loss", "poor", above=False, severity="problem")(lambda at, _: budget(at))


def amdahl(
    serial: float, *, sizes: tuple[int, ...] = (1, 2, 4, 8), kappa: float = 0.0, scaling: str = "strong"
) -> Evidence:
    speeds = {n: 100 * n / (1 + serial * (n - 1) + kappa * n * (n - 1)) for n in sizes}
    return evidence(*(run(f"n{n}", ranks=n, scaling=scaling, samples_per_s=rate(s)) for n, s in speeds.items()))


border("serial_fraction", "efficiency", above=False)(lambda at, _: amdahl((1 / at - 1) / 7))


def first_losses(run_id: str, first: float, *, ranks: int = 2, **known: Any) -> TrainingRun:
    same = {"global_batch": 32, "settings": {"seed": 1, "lr": 0.1}, "strategy": run_id, "label": run_id}
    curve = epochs(seconds=[1.0, 1.0], loss=[first, first / 2])
    return run(run_id, ranks=ranks, epochs=curve, **{**same, **known})


def _apart(at: float, **known: Any) -> Evidence:
    return evidence(first_losses("ddp", 2.0, **known), first_losses("naive", 2 + 2 * at, **known))


border("math_differs", "apart")(lambda at, _: _apart(at))
border("math_differs", "apart_unseeded")(lambda at, _: _apart(at, settings={"lr": 0.1}))
border("duplicated_data", "seen")(
    lambda at, _: evidence(
        run("two", ranks=2, dataset_size=10_000, samples_seen_per_rank=(round(5000 * at), round(5000 * at)))
    )
)
WOBBLE = [0.002, -0.002, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001]


def learned(
    run_id: str, ranks: int, best: float, *, slow: bool = False, loss: float = 0.2, count: int = 12, **known: Any
) -> TrainingRun:
    """Twelve epochs up to ``best``, +- 0.002 from one to the next, of which the first ``count`` were trained."""
    rise = [0.12, 0.09, 0.07, 0.05, 0.03, 0.02, 0.01, 0, 0, 0, 0, 0] if slow else [0.08, 0.02] + [0.0] * 10
    accuracy = [best - 0.002 - r + w for r, w in zip(rise, WOBBLE, strict=True)]
    losses = [loss + 0.6 * 0.7**n for n in range(12)]
    timed = epochs(seconds=[12.0 / ranks] * count, accuracy=accuracy[:count], loss=losses[:count])
    return run(run_id, ranks=ranks, dataset="imdb", epochs=timed, **known)


@border("quality_lost", "noise")
def _noises(at: float, _: Path) -> Evidence:
    base = learned("a", 1, 0.783)
    same = quality(learned("b", 4, 0.783), base)
    assert same is not None
    assert same.noise is not None
    return evidence(base, learned("b", 4, 0.783 - at * same.noise))


border("quality_lost", "accuracy, noise unknown")(
    lambda at, _: evidence(learned("a", 1, 0.783, count=3), learned("b", 4, 0.783 - at, count=3))
)
BASE_LOSS = [0.60, 0.32, 0.26, 0.21, 0.15]


def one_rank(**known: Any) -> TrainingRun:
    return run("one", dataset="ag_news", epochs=epochs(seconds=[100.0] * 5, loss=BASE_LOSS), **known)


def four_ranks(loss: list[float], seconds: float, **known: Any) -> TrainingRun:
    return run("four", ranks=4, dataset="ag_news", epochs=epochs(seconds=[seconds] * 5, loss=loss), **known)


border("duplicated_data", "loss")(
    lambda at, _: evidence(one_rank(), four_ranks([0.6 - 0.6 * at, 0.3, 0.3, 0.3, 0.3], 100.0))
)
border("duplicated_data", "time")(lambda at, _: evidence(one_rank(), four_ranks([0.4, 0.3, 0.3, 0.3, 0.3], 100 * at)))
border("noisy_measurement", "steps", above=False, by=0.1)(
    lambda at, _: evidence(run("a", step_ns=step(10, n=round(at))))
)
border("noisy_measurement", "epochs", above=False, by=0.17)(
    lambda at, _: evidence(run("a", epochs=epochs(seconds=[1.0] * round(at))))
)
border("noisy_measurement", "reach")(lambda at, _: evidence(run("a", step_ns=step(10, spread=at))))


def megatron_log(folder: Path, *times_ms: float) -> Evidence:
    """A Megatron log of iterations from 1 on that took so long, one of three 1% more, one 1% less."""
    lines = [
        f" iteration {i:8d}/     900 | consumed samples: {i:12d} | elapsed time per iteration (ms): "
        f"{ms * (1 + 0.01 * (i % 3 - 1)):.2f} | learning rate: 1.5E-04 | global batch size:    64 | "
        "lm loss: 1.5E+00 | number of skipped iterations:   0 |\n"
        for i, ms in enumerate(times_ms, 1)
    ]
    head = (
        "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1\n"
    )
    (folder / "job.log").write_text(head + "".join(lines))
    return load_evidence([folder / "job.log"])


def _slower(at: float, folder: Path) -> Evidence:
    return megatron_log(folder, *[1000.0] * 50, *[1000.0 + 1000 * at] * 50)


border("step_time_change", "change", by=0.05)(_slower)
border("step_time_change", "grave", by=0.05, severity="problem")(_slower)

# Collectives


@border("busbw_drop", "drop", by=0.1)
def _drops(at: float, _: Path) -> Evidence:
    return drops(6000 / (1 - at))


@border("busbw_drop", "without", by=0.1)
def _drops_of_means(at: float, _: Path) -> Evidence:
    rows = drops(6000 / (1 - at)).comm
    return evidence(comm=tuple(replace(row, time_ns_median=None, time_ns_mean=row.time_ns_median) for row in rows))


def drops(last_us: float, **shape: str) -> Evidence:
    sizes = ((MIB, 500.0), (4 * MIB, 1500.0), (16 * MIB, last_us))
    return evidence(comm=tuple(collective(size, us, **shape) for size, us in sizes))


NVIDIA = {"device": "cuda", "backend": "nccl"}
border("nccl_algorithm", "gain", by=0.01)(
    lambda at, _: evidence(
        comm=tuple(
            collective(4 * MIB, us, env=env, world_size=8, **NVIDIA)
            for us, env in ((300 * at, {}), (300, {"NCCL_ALGO": "Ring"}))
        )
    )
)
border("nccl_net_plugin", "rate", above=False)(
    lambda at, _: evidence(comm=(collective(64 * MIB, 96 * MIB / at * 1e6, world_size=4, hosts=2, **NVIDIA),))
)


def shared(tail: float, *, size: int = 4 * MIB, **changes: Any) -> Evidence:
    """A median of 10 ms whose slowest tenth begins at ``tail`` times that."""
    hosts = {"world_size": 4, "hosts": 4, "network": "1gbit:4"}
    timed = {"time_ns_p90": tail * 1e7, "time_ns_max": 3e7}
    return evidence(comm=(collective(size, 10_000, **{**hosts, **timed, **changes}),))


border("network_contention", "tail")(lambda at, _: shared(at))
border("network_contention", "spread", above=False)(lambda at, _: shared(3.0, rank_spread=at))
border("network_contention", "calls", by=0.05)(lambda at, _: shared(3.0, iterations=round(at)))


def _widened(name: str, times: float) -> Evidence:
    rows = sweep(sizes=SIZES[:4])
    rows[2] = replace(rows[2], **{f"time_ns_{name}": times * (rows[2].time_ns_median or 0)})
    return evidence(comm=tuple(rows))


border("noisy_collectives", "reach")(lambda at, _: _widened("high", 1 + at))
border("noisy_collectives", "tails")(lambda at, _: _widened("mean", at))


def link(rate_: float, **shape: Any) -> tuple[Any, ...]:
    """busbw ``rate_`` at 1 GiB; 20 us at 1 KiB."""
    n = shape["world_size"]
    us = (1 << 30) * 2 * (n - 1) / n / rate_ * 1e6
    return (collective(1024, 20, **shape), collective(1 << 30, us, **shape))


NVLINK = {**NVIDIA, "world_size": 8, "link_peak_bytes_per_s": 450e9}
border("slow_link", "fraction", above=False)(lambda at, _: evidence(comm=link(at * 450e9, **NVLINK)))
border("slow_link", "pair", by=0.02)(
    lambda at, _: evidence(comm=tuple(pairs(4, slow_egress={2: at}, rank_hosts=("a", "b", "c", "d"))))
)


def product(spread: float, *, slowest: int = 3, device: str = "cuda", size: int = 1 << 24) -> Any:
    return row(
        kind="matmul", op="matmul", dtype="bfloat16", reduce_op=None, world_size=8, device=device, size_bytes=size,
        time_ns_median=1.2e6, flops_per_s=600e12, rank_spread=spread, slowest_rank=slowest, cell_id="matmul",
    )  # fmt: skip


def gpus(*limits: tuple[float | None, float | None]) -> EnvironmentRecord:
    """A machine whose GPUs have this power limit and default."""
    return environment(
        gpus=tuple(
            GpuFact(
                index=index, name="NVIDIA A100-SXM4-40GB", uuid=None, memory_bytes=None, compute_capability=None,
                driver_version=None, power_limit_w=limit, power_limit_default_w=default,
            )
            for index, (limit, default) in enumerate(limits)
        )
    )  # fmt: skip


border("throttling", "spread")(lambda at, _: evidence(comm=(product(at),)))
border("throttling", "limit", above=False)(lambda at, _: evidence(environment=gpus((400 * at, 400))))

# Readings of tools of the machine


def readings(
    *rates: float, test: str, tool: str = "p2pBandwidthLatencyTest", **facts: str
) -> tuple[MachineReading, ...]:
    """Rates of one test, bytes/s, each of its own device."""
    return tuple(
        MachineReading(tool=tool, device=f"GPU {n} -> GPU {n + 1}", test=test, bytes_per_s=each, facts=facts)
        for n, each in enumerate(rates)
    )


P2P = "Unidirectional P2P=Enabled Bandwidth"
border("link_below_rate", "network", above=False, severity="warning")(
    lambda at, _: evidence(
        readings=(
            MachineReading(tool="ibstat", device="GPU 0 -> GPU 1 port 1", facts={"state": "Active", "rate": "400"}),
            *readings(at * 50e9, test="Send BW", tool="perftest", bytes="65536", **{"link type": "IB"}),
        )
    )
)
border("link_below_rate", "pair", severity="warning")(
    lambda at, _: evidence(readings=readings(*[50e9] * 9, 50e9 / at, test=P2P))
)
border("link_below_rate", "pcie", above=False, severity="warning")(
    lambda at, _: evidence(
        readings=readings(*[at * 63.015e9] * 4, test="host_to_device_memcpy_ce", model="H100 80GB HBM3")
    )
)
border("link_below_rate", "gain", above=False, severity="warning")(
    lambda at, _: evidence(
        readings=(
            *readings(*[at * 20e9] * 4, test=P2P),
            *readings(*[20e9] * 4, test=P2P.replace("Enabled", "Disabled")),
        )
    )
)
border("link_below_rate", "busy", severity="warning")(
    lambda at, _: evidence(
        readings=(
            MachineReading(
                tool="nvidia-smi",
                device="GPU 07:00.0",
                facts={
                    "pcie generation current": "3",
                    "pcie generation max": "4",
                    "utilization gpu": f"{100 * at} %",
                },
            ),
        )
    )
)

# Memory snapshots


def loop(folder: Path, *, steps: int = 10, per_step: int = 50, asked: int = 0, emptied: int = 0) -> Evidence:
    """A warm-up that fills the pool, then steps of tensors that come and go.

    asked: of the late requests, so many go to the driver. emptied: so many of those after the cache was given back.
    """
    trace = [e for n in range(steps * per_step) for e in (event("segment_alloc", 20 * MIB), alloc(n, MIB))]
    for n in range(steps * per_step):
        if n < asked:
            trace += [event("segment_free", 20 * MIB)] if n < emptied else []
            trace.append(event("segment_alloc", 20 * MIB))
        trace += [alloc(10_000 + n, MIB), *release(10_000 + n, MIB)]
    return load_evidence([dump(folder / "loop.pickle", [segment(live(MIB), free(19 * MIB))], trace)])


def pool(folder: Path, *, split: int, segments: int = 100, **more: Any) -> Evidence:
    """Segments of 20 MiB, each with ``split`` MiB of free splinters beside a live block."""
    parts = [segment(free(split * MIB), live((20 - split) * MIB))] * segments if split else [segment(live(20 * MIB))]
    return load_evidence([dump(folder / "pool.pickle", parts, **more)])


border("allocator_pressure", "share", by=0.2)(lambda at, folder: loop(folder, asked=round(500 * at)))
border("allocator_pressure", "requests", by=0.05)(
    lambda at, folder: loop(folder, steps=1, per_step=round(at), asked=50, emptied=50)
)
border("fragmentation", "share", by=0.2)(lambda at, folder: pool(folder, split=round(20 * at)))
border("fragmentation", "bytes", by=0.05)(lambda at, folder: pool(folder, split=8, segments=round(at / (8 * MIB))))
