"""What to do about the first cost: the window's own advice where a rule explains it, else what holds for every job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.diagnose.verdict_kinds import KIND_OF_RULE
from stepscope.records.finding import Advice, Diagnosis
from stepscope.records.verdict import Verdict, VerdictKind
from stepscope.results.profiled_job import ProfiledJob

_PLAIN: Mapping[VerdictKind, str] = {
    "straggler": "compare its work and its host with another rank's: samples, clocks, other jobs",
    "uneven-work": "give ranks batches of equal work: sort or bucket samples by length",
    "evaluation": "evaluate less often, on a part of the data, or in a job of its own",
    "checkpointing": "save less often, or in the background: torch.distributed.checkpoint.async_save",
    "garbage-collection": "gc.freeze() after set-up and gc.disable(); collect at the same step on all ranks",
    "compilation": "find what changes: TORCH_LOGS=recompiles; mark_dynamic() for shapes that vary",
    "periodic-pause": "look at what the loop does at those steps: logging, saving, validation",
    "contended-machine": "find what else runs here; no more processes x threads than cores: OMP_NUM_THREADS=1",
    "optimizer-bound": "a fused optimizer: AdamW(..., fused=True), or fewer parameters that change in a step",
    "pipeline-bubble": "more micro-batches a step, or an interleaved schedule",
    "independent-processes": "start them with torchrun, and call torch.distributed.init_process_group() before training",
    "compute-bound": "to be faster: more ranks, lower precision, or less work",
}


def advice_for(verdict: Verdict, *, job: ProfiledJob, diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """At most two: of the finding that explains the first cost, or the general one."""
    if verdict.kind == "input-bound":
        return (_loader(job.facts),)
    explained = [f for f in diagnosis.findings if KIND_OF_RULE.get(f.rule) == verdict.kind and f.advice]
    if explained:
        return explained[0].advice[:1]
    plain = _PLAIN.get(verdict.kind)
    return () if plain is None else (Advice(text=plain),)


def _loader(facts: Mapping[str, Any]) -> Advice:
    loaders = facts.get("loaders") or {}
    first = loaders.get("first") or {}
    cores = facts.get("cores")
    workers = first.get("num_workers")
    if not loaders:
        return Advice(text="prepare batches in other processes: a DataLoader with num_workers")
    if workers in (None, 0):
        most = max(1, min(4, cores or 4))
        return Advice(text=f"DataLoader(num_workers={most}, persistent_workers=True)")
    if cores is not None and workers >= cores:
        return Advice(
            text=f"make loading cheaper: {workers} workers already use all {cores} cores; store decoded samples"
        )
    return Advice(text=f"DataLoader(num_workers={2 * workers}): {workers} do not keep up; or store decoded samples")
