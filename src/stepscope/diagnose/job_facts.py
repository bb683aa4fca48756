"""What a job is, by its traces or by what a run states, and which advice applies to it.

Facts are device, parallelism, frameworks, loader, hosts, backward passes a step. Advice that holds for some jobs only names
its conditions; the engine asks the facts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median_low
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.diagnose.advised import Condition
from stepscope.diagnose.frameworks import used_by, used_in
from stepscope.diagnose.rule import AdviceFor, Outcome
from stepscope.records.finding import Advice, Finding
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_rules import JobSigns
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.traces.kernel_names import FUSED

if TYPE_CHECKING:
    from stepscope.predict.loading import Loading
    from stepscope.records.training import TrainingRun
    from stepscope.results.profiled_job import ProfiledJob

_SPLIT = ("tp", "pp", "ep", "cp")
_SHARDS = ("fsdp1", "fsdp2", "deepspeed", "torchtitan")
_OF_MESH = {"tp": "tp", "pp": "pp", "ep": "ep", "cp": "cp", "dp_shard": "fsdp2", "fsdp": "fsdp2"}


@record
class JobFacts:
    """Facts of a job that decide which advice can apply; None or empty: the traces do not say.

    device: cpu | cuda | rocm. parallel: ddp, sharded, tp, sp (tensor parallel with a split sequence), pp, ep, cp.
    ranks: of the whole job; ranks_a_host: of the host with most of them. cores: of a rank's host that it may use;
    threads: of one operator. micro_steps: backward passes in a step. trains: there are backward passes; False: inference.
    graphs: most of its device's work is launched by replays of graphs. loads_in_workers: worker processes make its batches.
    torch: PyTorch runs it.
    backend: of its process group. loading: what its ranks wait for data, and the processors for it, as its diary has them.
    setup: what else it recorded.
    """

    frameworks: frozenset[str] = frozenset()
    parallel: frozenset[str] = frozenset()
    device: str | None = None
    compiled: bool | None = None
    loader: LoaderSetup | None = None
    cores: int | None = None
    threads: int | None = None
    ranks: int | None = None
    hosts: int | None = None
    ranks_a_host: int | None = None
    micro_steps: int | None = None
    trains: bool | None = None
    graphs: bool | None = None
    torch: bool | None = None
    loads_in_workers: bool | None = None
    backend: str | None = None
    loading: Loading | None = None
    setup: JobSetup = JobSetup()

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def reduces_gradients(self) -> bool:
        """Return whether what is sent is as large as the parameters: more work between two reductions then thins it out.
        Activations grow with the batch."""
        return self.replicated or "sharded" in self.parallel

    @property
    def replicated(self) -> bool:
        """Return whether every rank holds the whole model, as far as anything says: gradients are or could be reduced."""
        return "ddp" in self.parallel or not self.parallel & {"sharded", *_SPLIT}

    @property
    def workers(self) -> int | None:
        return self.loader.workers if self.loader is not None else None

    @property
    def workers_fit(self) -> bool:
        """Return whether more workers shorten the step: by what was measured, else by whether ranks leave cores for twice as
        many, at least one; true where neither is recorded."""
        if self.loading is not None and self.loading.used_ns is not None:
            from stepscope.predict.loading import fewest_workers  # few jobs that are diagnosed have a diary

            return fewest_workers(self.loading) is not None
        if self.cores is None:
            return True
        computing = (self.threads or 1) if self.on_cpu else 0  # the host of a GPU mostly waits for it
        return (computing + max(1, 2 * (self.workers or 0))) * (self.ranks_a_host or 1) <= self.cores


def facts_of(summary: TraceSummary) -> JobFacts:
    """The facts of the job that these traces are of."""

    setups = [p.facts.setup for p in summary.ranks if p.facts.setup is not None]
    setup = setups[0] if setups else JobSetup()
    hosts = Counter(p.facts.host for p in summary.ranks)
    all_named = bool(hosts) and None not in hosts
    compiled = {s.compiled for s in setups}
    return JobFacts(
        frameworks=used_in(summary),
        parallel=_parallel_kinds(summary),
        device=_device_kind(summary),
        compiled=True if True in compiled or _has_fused_kernels(summary) else False if False in compiled else None,
        loader=setup.loader,
        cores=setup.cores,
        threads=setup.threads,
        ranks=summary.world_size or len(summary.ranks) or None,
        hosts=len(hosts) if all_named and len(summary.ranks) == (summary.world_size or 0) else _least_hosts(hosts),
        ranks_a_host=max(hosts.values()) if all_named else None,
        micro_steps=_passes_per_step(summary) or micro_steps(summary),
        trains=_is_training(summary),
        graphs=_replays_graphs(summary),
        torch=any(s.torch for s in signs) if (signs := _rank_signs(summary)) else None,
        loads_in_workers=next((s.loader_workers for s in _rank_signs(summary) if s.loader_workers is not None), None),
        backend=_backend_name(summary, setup),
        setup=setup,
    )


def facts_of_profiled(job: ProfiledJob) -> JobFacts:
    """The facts of a job by what its ranks recorded of themselves and of its steps: as good without a window."""
    from stepscope.traces.rank_pass import setup_of_model  # not needed for traces, nor for runs

    setup = setup_of_model(job.facts) or JobSetup()
    hosts = Counter(diary.header.host for diary in job.diaries)
    frameworks = used_by({*(job.facts.get("frameworks") or {}), *setup.wrapped}, setup.objects)
    steps = job.steps
    world = steps.world_size if steps is not None else None
    return JobFacts(
        frameworks=frameworks,
        parallel=_of_setup(setup, frameworks) | ({"pp"} if job.facts.get("pipeline") else frozenset()),
        device=setup.device,
        compiled=setup.compiled,
        loader=setup.loader,
        cores=setup.cores,
        threads=setup.threads,
        ranks=world,
        hosts=len(hosts) if hosts and (world is None or steps is None or steps.ranks == world) else None,
        ranks_a_host=max(hosts.values(), default=None),
        micro_steps=_micro_steps_of(job),
        trains=True if steps is not None else None,
        backend=setup.backend,
        loading=job.loading,
        setup=setup,
    )


def _micro_steps_of(job: ProfiledJob) -> int | None:
    passes = [int(n) for diary in job.diaries for n in diary.micro_steps if n]
    return median_low(passes) if passes else None


def _backend_name(summary: TraceSummary, setup: JobSetup) -> str | None:
    """Return the backend as traces or the job name it, nccl where kernels of the device communicate."""
    named = next((p.facts.backend for p in summary.ranks if p.facts.backend), None) or setup.backend
    if named is not None:
        return named
    on_device = any(p.budget and p.budget.source == "device" and p.budget.parts.comm_ns for p in summary.ranks)
    return "nccl" if on_device else None


def facts_of_run(run: TrainingRun) -> JobFacts:
    """The facts of a training run of any source, as far as its strategy and settings name them."""
    from stepscope.results.epochs import setting  # traces have no runs
    from stepscope.results.scaling import shards

    named = (run.strategy_key or run.strategy or "").lower()
    split = {kind for kind, words in _SPLIT_WORDS.items() if any(word in named for word in words)}
    for kind, names in _SPLIT_SETTINGS.items():
        if isinstance(size := setting(run.settings, *names), int) and size > 1:
            split.add(kind)
    replicas = {"ddp"} if named in _REPLICAS else set[str]()
    compiled = setting(run.settings, "torch_compile", "compile")
    return JobFacts(
        parallel=frozenset(split | replicas | ({"sharded"} if shards(run.strategy_key or run.strategy) else set())),
        device=run.device,
        compiled=compiled if isinstance(compiled, bool) else None,
        ranks=run.world_size,
        micro_steps=run.accumulation,
        trains=True,
    )


_SPLIT_WORDS = {
    "tp": ("tensor", "tp="),
    "pp": ("pipeline", "pp="),
    "ep": ("expert",),
    "cp": ("context",),
}
_SPLIT_SETTINGS = {
    "tp": ("tensor_model_parallel_size", "tensor_parallel_degree", "tp"),
    "pp": ("pipeline_model_parallel_size", "pipeline_parallel_degree", "pp"),
}
_REPLICAS = ("ddp", "naive", "interleaved", "bucketed", "dp", "dataparallel", "distributeddataparallel", "horovod")


def _passes_per_step(summary: TraceSummary) -> int | None:
    """Backward passes for each step of the optimizer, median rank."""
    ratios = [p.backward_passes.per_optimizer_step for p in summary.ranks if p.backward_passes is not None]
    counts = [round(ratio) for ratio in ratios if ratio]
    return median_low(counts) if counts else None


def _is_training(summary: TraceSummary) -> bool | None:
    """Return whether the job trains, or None where no host events say it."""
    hosted = {row.phase for p in summary.ranks for row in p.phases if row.host_ns}
    reduces = any(p.gradient_sync is not None or p.buckets or _passes_per_step(summary) for p in summary.ranks)
    if hosted & {"backward", "optimizer"} or reduces or any(signs.updates for signs in _rank_signs(summary)):
        return True
    if any(signs.serves for signs in _rank_signs(summary)):
        return False
    return False if "forward" in hosted and all(not p.partial for p in summary.ranks) else None


def _rank_signs(summary: TraceSummary) -> list[JobSigns]:
    return [p.signs for p in summary.ranks if p.signs is not None]


def _replays_graphs(summary: TraceSummary) -> bool | None:
    signs = _rank_signs(summary)
    return fmean(s.replayed for s in signs) > 0.5 if signs else None


def _has_fused_kernels(summary: TraceSummary) -> bool:
    """Whether kernels run that only a compiler makes."""
    return any(kind.kind == FUSED for p in summary.ranks if p.mix is not None for kind in p.mix.kinds)


def _least_hosts(hosts: Counter[str | None]) -> int | None:
    """Count the hosts of some ranks only: several are several, one may be one of many, hence None."""
    return len(hosts) if len(hosts) > 1 and None not in hosts else None


def _device_kind(summary: TraceSummary) -> str | None:
    """Return cuda, rocm or cpu; None: unknown."""
    for rank in summary.ranks:
        name = rank.facts.device_name
        if name is not None or (rank.budget is not None and rank.budget.source == "device"):
            amd = any(word in (name or "") for word in ("AMD", "Instinct", "Radeon"))
            return "rocm" if amd else "cuda"
    recorded = next((p.facts.setup.device for p in summary.ranks if p.facts.setup and p.facts.setup.device), None)
    if recorded is not None:
        return recorded
    return "cpu" if any(p.budget is not None and p.budget.source == "cpu_spans" for p in summary.ranks) else None


def _parallel_kinds(summary: TraceSummary) -> frozenset[str]:
    """Return the kinds of parallelism that groups, buckets and units show."""
    kinds: set[str] = set()
    used = used_in(summary)
    for rank in summary.ranks:
        kinds |= {group.kind for group in rank.groups if group.kind in _SPLIT and _is_surely_of_kind(group, rank)}
        if any(row.wrapper == "ddp" for row in rank.buckets):
            kinds.add("ddp")
        if rank.units is not None:
            kinds.add("sharded")
        if rank.facts.setup is not None:
            kinds |= _of_setup(rank.facts.setup, used)
        if _splits_sequence(rank):
            kinds.add("sp")
    return frozenset(kinds) | _of_setup(JobSetup(), used)


def _of_setup(setup: JobSetup, used: frozenset[str]) -> frozenset[str]:
    """Return what meshes and wrappers say of a job's parallelism."""
    kinds = {_OF_MESH[name] for name in setup.mesh if name in _OF_MESH} - {"fsdp2"}
    if "ddp" in used:
        kinds.add("ddp")
    if used & set(_SHARDS):
        kinds.add("sharded")
    return frozenset(kinds)


def _is_surely_of_kind(group: GroupBudget, rank: RankPass) -> bool:
    """Return whether a group is of its kind beyond doubt: what follows the backward pass is no part of a tensor-parallel
    layer, whatever runs between its reductions."""
    if group.kind != "tp" or group.kind_source == "name" or rank.gradient_sync is None:
        return True
    return rank.gradient_sync.before.calls > 0


def _splits_sequence(rank: RankPass) -> bool:
    divided = {group.group for group in rank.groups if group.kind == "tp"}
    calls = rank.communication.collectives if rank.communication is not None and divided else ()
    ops = {c.op for c in calls if c.group is not None and c.group.name in divided}
    return {"all_gather", "reduce_scatter"} <= ops


HOLDS: Mapping[Condition, Callable[[JobFacts], bool]] = {
    "gpu": lambda job: not job.on_cpu,
    "torch": lambda job: job.torch is not False,
    "nccl": lambda job: job.backend is not None and "nccl" in job.backend,
    "compiler": lambda job: not job.on_cpu or job.setup.compiler is not False,
    "unhooked": lambda job: not job.setup.comm_hooks,
    "unfused": lambda job: job.setup.fused is not True,
    "regathers": lambda job: job.setup.resharded is not False,
    "unfrozen": lambda job: not job.setup.frozen,
    "low precision": lambda job: job.setup.matmul_precision in (None, "highest"),
    "eager": lambda job: job.compiled is not True,
    "replicated": lambda job: job.replicated and job.ranks != 1 and job.trains is not False,
    "no pipeline": lambda job: "pp" not in job.parallel,
    "no split sequence": lambda job: "sp" not in job.parallel,
    "several hosts": lambda job: job.hosts != 1,
    "trains": lambda job: job.trains is not False,
    "infers": lambda job: job.trains is False,
    "no graphs": lambda job: job.graphs is not True,
    "micro-steps": lambda job: job.micro_steps != 1,
    "room for workers": lambda job: job.workers_fit,
    "workers that end": lambda job: (
        job.loads_in_workers is not False
        if job.loader is None
        else (bool(job.loader.workers) and job.loader.persistent is not True)
    ),
    "pageable batches": lambda job: not job.on_cpu and (job.loader is None or job.loader.pinned is not True),
}
"""Condition -> whether it may hold: true where the facts do not say otherwise, but for ``advised.STRICT``."""


def applies(advice: Advice, job: JobFacts | None) -> bool:
    """Return whether advice can help this job; None stands for a job of which nothing is known."""
    return not isinstance(advice, AdviceFor) or all(
        HOLDS[condition](job or JobFacts()) for condition in advice.applies_to
    )


def applicable(outcome: Outcome, evidence: Evidence) -> Outcome:
    """Return ``outcome`` with only the advice that can apply to the job of each finding, as plain advice."""
    if not isinstance(outcome, tuple) or not any(isinstance(a, AdviceFor) for f in outcome for a in f.advice):
        return outcome
    jobs = {finding.job for finding in outcome}
    facts_by_job = {
        job.name: _with_diary(facts_of(job.summary), job, evidence) for job in evidence.traces if job.name in jobs
    }
    runs = {run.run_id: run for run in evidence.runs}

    def facts(finding: Finding) -> JobFacts | None:
        if finding.runs:
            return facts_of_run(runs[finding.runs[0]]) if finding.runs[0] in runs else None
        return facts_by_job.get(finding.job or "")

    return tuple(_with_applicable(finding, facts(finding)) for finding in outcome)


def _with_diary(facts: JobFacts, job: TraceEvidence, evidence: Evidence) -> JobFacts:
    """Return the facts with what the diary of the job knows of its loading."""
    profiled = evidence.profiled_of(job)
    return facts if profiled is None else replace(facts, loading=profiled.loading)


def _with_applicable(finding: Finding, job: JobFacts | None) -> Finding:
    kept = tuple(Advice(text=a.text, command=a.command) for a in finding.advice if applies(a, job))
    return replace(finding, advice=kept)


_FORWARD = "DistributedDataParallel.forward"
_WHOLE = 0.02
"""Reduced elements / parameters is a number of passes when it is this close to a whole number."""


def micro_steps(summary: TraceSummary) -> int | None:
    """Return the passes a step that reduce the same gradients, median rank; None where no step shows any reduction."""
    counts = [k for p in summary.ranks if (k := _rank_micro_steps(p)) is not None]
    return median_low(counts) if counts else None


def _rank_micro_steps(rank: RankPass) -> int | None:
    """Return how many backward passes a step of this rank has, median; None: nothing shows it."""
    rows = (row for row in rank.buckets if row.step is not None and row.op in ("all_reduce", "reduce_scatter"))
    steps = grouped(rows, lambda row: row.step)
    if not steps:
        return _unit_micro_steps(rank)
    passes = _forward_passes(rank)
    return median_low([_step_passes(rank, sorted(rows, key=lambda r: r.launch_ns), passes) for rows in steps.values()])


def _forward_passes(rank: RankPass) -> int | None:
    """Return calls of DDP's forward a step, or None where it is not annotated or the annotations were not read."""
    calls = next((row.calls for row in rank.annotations if row.name == _FORWARD), 0)
    return round(calls / len(rank.steps)) if calls and rank.steps else None


def _step_passes(rank: RankPass, rows: Sequence[BucketRow], passes: int | None) -> int:
    """Return 1 unless the same sizes follow each other in the same order, and something says that a pass ends between."""
    parameters = rank.facts.setup.parameters if rank.facts.setup is not None else None
    if parameters and passes != 1:
        reduced = sum((row.size_bytes or 0) / DTYPE_BYTES.get(row.dtype or "", 4) for row in rows) / parameters
        whole = round(reduced)
        return whole if whole > 1 and abs(reduced - whole) <= _WHOLE * whole and _sizes_repeat(rows, whole) else 1
    if passes is not None:
        return passes if passes > 0 and _sizes_repeat(rows, passes) else 1
    return next((k for k in range(len(rows) // 2, 1, -1) if _sizes_repeat(rows, k) and _passes_are_apart(rows, k)), 1)


def _sizes_repeat(rows: Sequence[BucketRow], times: int) -> bool:
    length, rest = divmod(len(rows), times)
    if rest or not length:
        return False
    kinds = [(row.op, row.size_bytes) for row in rows]
    return all(kinds[i] == kinds[i % length] for i in range(len(kinds)))


def _passes_are_apart(rows: Sequence[BucketRow], times: int) -> bool:
    """Return whether a forward pass fits between two passes: every gap there is longer than any inside one."""
    length = len(rows) // times
    gaps = [b.launch_ns - a.launch_ns for a, b in pairwise(rows)]
    between = [gap for i, gap in enumerate(gaps) if (i + 1) % length == 0]
    inside = [gap for i, gap in enumerate(gaps) if (i + 1) % length]
    return bool(inside) and min(between) > max(inside)


def _unit_micro_steps(rank: RankPass) -> int | None:
    """Reductions of one sharded unit in a step."""
    if rank.units is None:
        return None
    reductions = Counter(
        (call.step, call.unit)
        for call in rank.units.calls
        if call.op == "reduce_scatter" and call.unit is not None and call.step is not None
    )
    return median_low(reductions.values()) if reductions else None
