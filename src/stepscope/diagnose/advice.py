"""What to do about the first cost of a verdict: of the finding that explains it, or the general advice for its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import join, quote

from stepscope.diagnose.frameworks import option
from stepscope.diagnose.rule import advise
from stepscope.diagnose.rules import kind_of
from stepscope.records.finding import Advice, Diagnosis, JobVerdict, VerdictKind
from stepscope.results.diary import crowd
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.slow_ranks import Slow

MOST_WORKERS = 4
"""Advised at first: a look at the next profile says whether they keep up."""

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
    "inference": "batch them: fewer and larger ones, in torch.inference_mode() and lower precision; fewer only if the "
    "algorithm allows it",
    "worker-start": "DataLoader(..., persistent_workers=True): it keeps the workers of the epoch before",
    "before-forward": "see what the loop does from one optimizer step to its next forward pass; what prepares batches can "
    "go to a DataLoader with workers",
    "compute-bound": "to be faster: more ranks, lower precision, or less work",
}
_OUTSIDE_LOADERS = "see what the loop does there; what prepares batches belongs in a DataLoader with num_workers"


def advice_for(
    verdict: JobVerdict, *, job: ProfiledJob, diagnosis: Diagnosis, late: Sequence[Slow]
) -> tuple[Advice, ...]:
    """At most two: of the finding that explains the first cost, or the general one."""
    if verdict.kind == "input-bound":
        outside = verdict.costs[0].rules == ("before",)
        return (advise(_OUTSIDE_LOADERS) if outside else _loader(job),)
    if verdict.kind == "straggler" and any(each.kind == "chronic" and each.part == "data_wait" for each in late):
        from stepscope.diagnose.rules.straggler import CAUSE_ADVICE  # a log that names no slow rank needs none

        return (advise(CAUSE_ADVICE["data"]),)
    if verdict.kind == "computation-or-python":
        ended = f"stepscope profile -- {join(job.record.command)}"
        look = f"stepscope profile --attach {quote(str(job.folder))}" if verdict.ended is None else ended
        return (advise("profile some of its steps", command=look),)
    named = "host-bound" if verdict.kind == "before-forward" else verdict.kind
    explained = [f for f in diagnosis.findings if kind_of(f) == named and f.advice]
    if explained:
        return explained[0].advice[:1]
    full = crowd(job.steps) if verdict.kind == "contended-machine" and job.steps is not None else None
    if full is not None:
        return (advise(f"start no more ranks x threads a host than its {full.cores} cores"),)
    plain = _PLAIN.get(verdict.kind)
    return () if plain is None else (advise(plain),)


def _loader(job: ProfiledJob) -> Advice:
    """Workers where there are none, more where cores are left, else cheaper loading."""
    loaders = job.facts.get("loaders") or {}
    if not loaders and job.facts:
        return advise(_OUTSIDE_LOADERS)
    workers = (loaders.get("first") or {}).get("num_workers") or 0
    free = job.cores_a_rank or MOST_WORKERS
    if workers and workers >= free:
        return advise(f"make loading cheaper: {workers} workers a rank use all cores; store decoded samples")
    wanted = min(MOST_WORKERS, free) if not workers else min(2 * workers, free)
    keep = "" if (loaders.get("first") or {}).get("persistent_workers") else ", persistent_workers=True"
    plain = f"DataLoader(num_workers={wanted}{keep})"
    named = option("loader workers", job.facts.get("frameworks") or {}, plain=plain).replace("...", str(wanted))
    return advise(named)
