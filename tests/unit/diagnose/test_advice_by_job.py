"""No rule advises what the evidence at hand makes wrong, nor what the kind of job makes pointless.

One fact of every rule's firing evidence changes, and the advice with it; then the evidence is that of each kind of job.

A row of ``KINDS`` turns evidence into that of another kind of job by its recorded facts (strategy, mesh, frameworks,
compiled code, phases), and says which words no advice may then have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.wrong_advice import CASES, Maker, cells, collectives, made, runs, traces, words

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules import REGISTRY
from stepscope.records.profile import JobSetup
from stepscope.records.trace_rules import JobSigns
from stepscope.records.trace_summary import RankPass
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import CellEvidence, Evidence

MODULES = (cells, collectives, runs, traces)

DDP = r"DistributedDataParallel|\bDDP\b|bucket_cap_mb|no_sync|ZeRO-1|ZeRO stage 1|shard the update|bf16 hook|hook on"
COMPILE = r"torch\.compile\(|torch_compile|dynamo_backend|compile\.enable"
NAMES = {
    "HF Trainer": r"HF Trainer|TrainingArguments", "Lightning": r"Lightning|Trainer\(accumulate",
    "DeepSpeed": r"DeepSpeed", "Megatron-LM": r"Megatron-LM|--micro-batch-size", "torchtitan": r"torchtitan",
    "accelerate": r"accelerate:|Accelerator\(",
}  # fmt: skip
TRAINING = r"gradient|optimizer|accumulat|no_sync|backward|learning rate|sampler"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of job. runs, ranks: how its runs and the ranks of its traces are changed; never: what no advice says."""

    never: str
    runs: Mapping[str, Any] | None = None
    ranks: Callable[[RankPass], RankPass] | None = None


def _setup(**known: Any) -> Callable[[RankPass], RankPass]:
    def changed(each: RankPass) -> RankPass:
        setup = replace(each.facts.setup or JobSetup(), **known)
        return replace(each, buckets=(), facts=replace(each.facts, setup=setup, frameworks=()))

    return changed


def _frameworks(*used: str) -> Callable[[RankPass], RankPass]:
    return lambda each: replace(each, facts=replace(each.facts, frameworks=used, setup=None))


def _compiled(each: RankPass) -> RankPass:
    setup = replace(each.facts.setup or JobSetup(), compiled=True)
    return replace(each, facts=replace(each.facts, setup=setup))


def _infers(each: RankPass) -> RankPass:
    kept = tuple(replace(p, host_ns=max(p.host_ns, 1)) for p in each.phases if p.phase in ("forward", "other"))
    signs = None if each.signs is None else replace(each.signs, updates=False)
    return replace(each, phases=kept, buckets=(), gradient_sync=None, backward_passes=None, units=None, signs=signs)


def _serves(each: RankPass) -> RankPass:
    """Requests are answered from graphs, as a server does that records no operator."""
    rest = tuple(replace(p, host_ns=0) for p in each.phases)
    signs = JobSigns(rank=each.facts.rank, serves=True, updates=False, loader_workers=None, replayed=0.9)
    facts = replace(each.facts, frameworks=("vllm",), setup=None)
    kept = replace(each, phases=rest, buckets=(), gradient_sync=None, backward_passes=None, units=None)
    return replace(kept, signs=signs, facts=facts)


def _others(*own: str) -> str:
    return "|".join(words for name, words in NAMES.items() if name not in own)


KINDS = {
    "single": Kind(runs={"strategy": "single", "world_size": 1}, never=DDP),
    "fsdp2": Kind(runs={"strategy": "fsdp2"}, never=DDP),
    "hsdp": Kind(runs={"strategy": "hsdp"}, never=DDP),
    "zero1": Kind(runs={"strategy": "zero1"}, never=r"ZeRO-1|shard the (update|optimizer)|no_sync"),
    "tensor parallel": Kind(runs={"strategy": "tensor_parallel"}, ranks=_setup(mesh=("tp",)), never=DDP),
    "pipeline": Kind(runs={"strategy": "pipeline"}, ranks=_setup(mesh=("pp",)), never=DDP),
    "a log with pipeline stages": Kind(
        runs={"strategy": None, "settings": {"pipeline_model_parallel_size": 4}}, never=DDP
    ),
    "compiled": Kind(ranks=_compiled, never=COMPILE),
    "HF Trainer": Kind(ranks=_frameworks("transformers", "ddp"), never=_others("HF Trainer")),
    "HF Trainer with DeepSpeed": Kind(
        ranks=_frameworks("transformers", "deepspeed"), never=_others("HF Trainer", "DeepSpeed")
    ),
    "Lightning with a model of transformers": Kind(
        ranks=_frameworks("lightning", "transformers", "accelerate", "ddp"), never=_others("Lightning")
    ),
    "Megatron": Kind(ranks=_frameworks("megatron", "transformers"), never=_others("Megatron-LM")),
    "torchtitan": Kind(ranks=_frameworks("torchtitan", "fsdp2", "transformers"), never=_others("torchtitan")),
    "inference": Kind(ranks=_infers, never=TRAINING),
    "a server": Kind(
        ranks=_serves, never=rf"{TRAINING}|micro-batch|replay CUDA graphs|GradScaler|losses|torch\.compile\(model\)"
    ),
}

_MEANT = {
    ("fsdp2", "sharding_saves_little"), ("hsdp", "sharding_saves_little"),  # it was measured, and costs more than it saves
    ("tensor parallel", "sharding_saves_little"), ("pipeline", "sharding_saves_little"), ("zero1", "sharding_saves_little"),
}  # fmt: skip
"""Advice to leave the kind, given on measurements of both."""


def of_kind(evidence: Evidence, kind: Kind) -> Evidence:
    """``evidence`` with runs and traced jobs of this kind; where it has neither, as it is."""

    def run(each: TrainingRun) -> TrainingRun:
        known = kind.runs or {}
        settings = {**each.settings, **known.get("settings", {})}
        strategy = known.get("strategy", each.strategy)
        key = strategy if each.strategy_key is not None else None
        return replace(
            each,
            strategy=strategy,
            strategy_key=key,
            settings=settings,
            world_size=known.get("world_size", each.world_size),
        )

    def cell(each: CellEvidence) -> CellEvidence:
        known = {name: value for name, value in (kind.runs or {}).items() if name != "settings" and value is not None}
        spec = replace(each.spec, **known, strategy_options={} if known else each.spec.strategy_options)
        return replace(each, run=run(each.run), result=replace(each.result, spec=spec))

    changed = evidence
    if kind.runs is not None:
        changed = replace(changed, runs=tuple(map(run, changed.runs)), cells=tuple(map(cell, changed.cells)))
    if kind.ranks is not None:
        jobs = (
            replace(job, summary=replace(job.summary, ranks=tuple(map(kind.ranks, job.summary.ranks))))
            for job in changed.traces
        )
        changed = replace(changed, traces=tuple(jobs))
    return changed


def concerns(kind: Kind, evidence: Evidence) -> bool:
    """Whether a rule's evidence can be of this kind: the runs or the traces by which the kind is known are there."""
    told_by_runs = kind.runs is not None and bool(evidence.runs) and ("settings" not in kind.runs or not evidence.cells)
    return told_by_runs or (kind.ranks is not None and bool(evidence.traces))


def advised(key: str, evidence: Evidence) -> list[str]:
    outcome = check(REGISTRY.load(key), evidence)
    found = outcome if isinstance(outcome, tuple) else ()
    return [f"{each.text} {each.command or ''}" for finding in found for each in finding.advice]


ALL = [pytest.param(key, make, id=f"{key}-{make.__name__}") for key, makers in sorted(CASES.items()) for make in makers]


@pytest.mark.parametrize(("key", "make"), ALL)
def test_advice_follows_the_fact_that_makes_it_right(key: str, make: Maker) -> None:
    found = made(make)
    rule = REGISTRY.load(key)
    right, wrong = check(rule, found.right), check(rule, found.wrong)
    assert isinstance(right, tuple), f"the rule has to fire where its advice is right: {right}"
    assert found.advice in words(right)
    assert found.advice not in words(wrong)
    assert found.instead in words(wrong)


@pytest.mark.parametrize("key", sorted(CASES))
def test_no_advice_that_the_kind_of_job_makes_pointless(key: str) -> None:
    wrong = []
    for make in CASES[key]:
        found = made(make)
        for name, kind in KINDS.items():
            if (name, key) in _MEANT or not concerns(kind, found.right):
                continue
            for text in advised(key, of_kind(found.right, kind)):
                if re.search(kind.never, text):
                    wrong.append(f"{name}: {text}")
    assert wrong == []


def test_the_kinds_change_what_rules_see() -> None:
    """A table whose rows silence everything would hold for every rule."""
    assert len(MODULES) == 4
    said = dict.fromkeys(KINDS, 0)
    for key in ("launch_bound", "memory_bandwidth_bound", "optimizer_heavy", "near_oom"):
        for make in CASES[key]:
            for name, kind in KINDS.items():
                said[name] += len(advised(key, of_kind(made(make).right, kind)))
    assert min(said.values()) >= 10
