"""What a job is, by its traces or by what a run states: device, parallelism, frameworks, loader, hosts. Advice asks it."""

from __future__ import annotations

from collections import Counter
from statistics import median_low

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.frameworks import used_in
from stepscope.records.profile import LoaderSetup
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.records.training import TrainingRun
from stepscope.results.figures import setting
from stepscope.results.scaling import shards
from stepscope.traces.kernel_names import FUSED

_SPLIT = ("tp", "pp", "ep", "cp")
_SHARDS = ("fsdp1", "fsdp2", "deepspeed", "torchtitan")
_OF_MESH = {"tp": "tp", "pp": "pp", "ep": "ep", "cp": "cp", "dp_shard": "fsdp2", "fsdp": "fsdp2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of a job that decide which advice can apply; None or empty: the traces do not say.

    device: cpu | cuda | rocm. parallel: ddp, sharded, tp, sp (tensor parallel with a split sequence), pp, ep, cp.
    ranks: of the whole job; ranks_a_host: of the host with most of them. cores: of a rank's host that it may use;
    threads: of one operator. micro_steps: backward passes in a step. trains: there are backward passes; False: inference.
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

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def reduces_gradients(self) -> bool:
        """What is sent is as large as the parameters: more work between two reductions thins it out. Activations grow with
        the batch.
        """
        return self.replicated or "sharded" in self.parallel

    @property
    def replicated(self) -> bool:
        """Every rank holds the whole model, as far as anything says: its gradients are reduced in buckets, or could be."""
        return "ddp" in self.parallel or not self.parallel & {"sharded", *_SPLIT}

    @property
    def workers_fit(self) -> bool:
        """Whether twice the loader's workers, at least one, have cores; true where that is not recorded."""
        workers = self.loader.workers if self.loader is not None else None
        if not workers or self.cores is None:
            return True
        return 2 * workers * (self.ranks_a_host or 1) <= self.cores


def facts_of(summary: TraceSummary) -> JobFacts:
    """The facts of the job that these traces are of."""
    from stepscope.diagnose.micro_steps import micro_steps

    setups = [p.facts.setup for p in summary.ranks if p.facts.setup is not None]
    setup = setups[0] if setups else None
    hosts = Counter(p.facts.host for p in summary.ranks)
    all_named = bool(hosts) and None not in hosts
    compiled = {s.compiled for s in setups}
    return JobFacts(
        frameworks=used_in(summary),
        parallel=_parallel(summary),
        device=_device(summary),
        compiled=True if True in compiled or _fused(summary) else False if False in compiled else None,
        loader=setup.loader if setup is not None else None,
        cores=setup.cores if setup is not None else None,
        threads=setup.threads if setup is not None else None,
        ranks=summary.world_size or len(summary.ranks) or None,
        hosts=len(hosts) if all_named and len(summary.ranks) == (summary.world_size or 0) else _least(hosts),
        ranks_a_host=max(hosts.values()) if all_named else None,
        micro_steps=_passes(summary) or micro_steps(summary),
        trains=_trains(summary),
    )


def facts_of_run(run: TrainingRun) -> JobFacts:
    """The facts of a training run of any source, as far as its strategy and settings name them."""
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


def _passes(summary: TraceSummary) -> int | None:
    """Backward passes for each step of the optimizer, median rank."""
    known = [p.backward_passes.per_optimizer_step for p in summary.ranks if p.backward_passes is not None]
    counts = [round(each) for each in known if each]
    return median_low(counts) if counts else None


def _trains(summary: TraceSummary) -> bool | None:
    """None: no host events say."""
    hosted = {row.phase for p in summary.ranks for row in p.phases if row.host_ns}
    reduces = any(p.gradient_sync is not None or p.buckets or _passes(summary) for p in summary.ranks)
    if hosted & {"backward", "optimizer"} or reduces:
        return True
    return False if "forward" in hosted and all(not p.partial for p in summary.ranks) else None


def _fused(summary: TraceSummary) -> bool:
    """Whether kernels run that only a compiler makes."""
    return any(kind.kind == FUSED for p in summary.ranks if p.mix is not None for kind in p.mix.kinds)


def _least(hosts: Counter[str | None]) -> int | None:
    """Of some ranks only: several hosts are several, one may be one of many."""
    return len(hosts) if len(hosts) > 1 and None not in hosts else None


def _device(summary: TraceSummary) -> str | None:
    for each in summary.ranks:
        name = each.facts.device_name
        if name is not None or (each.budget is not None and each.budget.source == "device"):
            amd = any(word in (name or "") for word in ("AMD", "Instinct", "Radeon"))
            return "rocm" if amd else "cuda"
    recorded = next((p.facts.setup.device for p in summary.ranks if p.facts.setup and p.facts.setup.device), None)
    if recorded is not None:
        return recorded
    return "cpu" if any(p.budget is not None and p.budget.source == "cpu_spans" for p in summary.ranks) else None


def _parallel(summary: TraceSummary) -> frozenset[str]:
    found: set[str] = set()
    used = used_in(summary)
    for each in summary.ranks:
        found |= {group.kind for group in each.groups if group.kind in _SPLIT and _is(group, each)}
        if any(row.wrapper == "ddp" for row in each.buckets):
            found.add("ddp")
        if each.units is not None:
            found.add("sharded")
        if each.facts.setup is not None:
            found |= {_OF_MESH[name] for name in each.facts.setup.mesh if name in _OF_MESH} - {"fsdp2"}
        if _splits_sequence(each):
            found.add("sp")
    if "ddp" in used:
        found.add("ddp")
    if used & set(_SHARDS):
        found.add("sharded")
    return frozenset(found)


def _is(group: GroupBudget, each: RankPass) -> bool:
    """Whether a group is of its kind beyond doubt: what follows the backward pass is no part of a tensor-parallel layer,
    whatever runs between its reductions."""
    if group.kind != "tp" or group.kind_source == "name" or each.gradient_sync is None:
        return True
    return each.gradient_sync.before.calls > 0


def _splits_sequence(each: RankPass) -> bool:
    divided = {group.group for group in each.groups if group.kind == "tp"}
    calls = each.communication.collectives if each.communication is not None and divided else ()
    ops = {c.op for c in calls if c.group is not None and c.group.name in divided}
    return {"all_gather", "reduce_scatter"} <= ops
