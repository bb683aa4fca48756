"""What a verdict says: a noun that everybody in the field uses, one number, one interval; then what to do.

What to do about the first cost: the window's own advice where a rule explains it, else what holds for every job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.frameworks import option
from stepscope.diagnose.rule import advise
from stepscope.diagnose.rules import kind_of
from stepscope.records.finding import Advice, Diagnosis, JobVerdict, TimeCost, VerdictKind
from stepscope.records.nouns import Estimate
from stepscope.records.profile import JobEnd
from stepscope.results.diary import JobSteps, between_steps, crowd, drift
from stepscope.results.profiled_job import ProfiledJob, end_sentence
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
    explained = [f for f in diagnosis.findings if kind_of(f) == verdict.kind and f.advice]
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


KIND_OF_EVENT: Mapping[str, VerdictKind] = {
    "evaluation": "evaluation",
    "checkpoint": "checkpointing",
    "garbage_collection": "garbage-collection",
    "compilation": "compilation",
}
"""What each event of a diary that takes time is called."""

NOUNS: dict[VerdictKind, str] = {
    "crash": "Crash",
    "killed": "Killed",
    "hang": "Hang",
    "no-steps": "No steps",
    "contended-machine": "Contended machine",
    "input-bound": "Input-bound",
    "communication-bound": "Communication-bound",
    "straggler": "Straggler",
    "uneven-work": "Uneven work",
    "pipeline-bubble": "Pipeline bubble",
    "evaluation": "Evaluation",
    "checkpointing": "Checkpointing",
    "garbage-collection": "Garbage collection",
    "compilation": "Compilation",
    "periodic-pause": "Periodic pause",
    "host-bound": "Host-bound",
    "memory-bound": "Memory-bound",
    "optimizer-bound": "Optimizer-bound",
    "independent-processes": "Independent processes",
    "compute-bound": "Compute-bound",
    "undecided": "Undecided",
}

OF_WINDOW = frozenset({"host-bound", "memory-bound"})
"""Kinds whose size the profiled steps alone show."""

_ENDS = ("crash", "killed", "hang", "no-steps")

PART_WORDS = {
    "data_wait": "waiting for data",
    "forward": "in forward",
    "backward_compute": "in backward",
    "optimizer": "in the optimizer",
    "other": "outside forward, backward and optimizer",
}


def worded(
    verdict: JobVerdict, *, job: ProfiledJob, steps: JobSteps, late: tuple[Slow, ...], diagnosis: Diagnosis
) -> JobVerdict:
    """The verdict with its headline, evidence, notes and advice."""
    told = any(cost.kind == "straggler" for cost in verdict.costs)
    return replace(
        verdict,
        headline=headline(verdict, steps, late, job.end),
        costs=tuple(replace(cost, line=cost_line(cost, steps, late)) for cost in verdict.costs),
        evidence=tuple(_evidence(steps, late)) if told else (),
        notes=(*_restarted(job.end), *_between(verdict, steps), *_drift(steps), *_profiler(verdict)),
        advice=advice_for(verdict, job=job, diagnosis=diagnosis, late=late),
    )


def percent(share: Estimate) -> str:
    """``38 % (±2)``; the interval's half width in points where there is one."""
    text = format_percent(share.value)
    if share.low is None or share.high is None:
        return text
    half = max(share.high - share.value, share.value - share.low)
    points = f"{100 * half:.0f}" if half >= 0.005 else "<1"
    return f"{text} (±{points})"


def headline(verdict: JobVerdict, steps: JobSteps, late: tuple[Slow, ...], end: JobEnd | None) -> str:
    """The first line."""
    if verdict.kind in _ENDS and end is not None:
        return end_sentence(end)
    if verdict.kind == "independent-processes":
        if steps.independent:
            same = sum(each.rank == steps.diaries[0].rank for each in steps.processes)
            return f"{NOUNS[verdict.kind]}: {counted(same, 'process')} train at the same time without a process group"
        return f"{NOUNS[verdict.kind]}: {counted(steps.ranks, 'rank')} train, and none ever communicates"
    if not verdict.costs:
        return _computes(verdict)
    return cost_line(verdict.costs[0], steps, late)


def _computes(verdict: JobVerdict) -> str:
    share = next((part.share for part in verdict.tree if part.key == "computation"), None)
    if share is None:
        return "Compute-bound: no part of the step outside computation takes a tenth of it"
    return f"Compute-bound: {format_percent(share)} of every step is computation"


def cost_line(cost: TimeCost, steps: JobSteps, late: tuple[Slow, ...] = ()) -> str:
    """A cost as a headline: noun, who, number."""
    noun, much = NOUNS[cost.kind], percent(cost.share)
    every = "every step" if cost.period is None else f"every {cost.period} steps"
    if cost.kind == "contended-machine":
        full = crowd(steps)
        whose = (
            ""
            if full is None
            else f"; {counted(full.ranks, 'rank')} with {full.threads} threads share {full.cores} cores"
        )
        return f"{noun}: ranks are ready to run and wait for a processor {much} of the step{whose}"
    if cost.kind == "input-bound":
        if cost.rules == ("before",):
            return f"{noun}: the loop takes {much} of every step before its forward pass, outside any DataLoader"
        return f"{noun}: every step waits {much} of its time for data"
    if cost.kind == "straggler":
        return _straggler(cost, steps, late)
    if cost.kind == "uneven-work":
        return f"{noun}: ranks take turns in being last; the others wait {much} of the step"
    if cost.kind == "communication-bound":
        return f"{noun}: communication that no computation hides takes {much} of every step"
    if cost.kind == "pipeline-bubble":
        return f"{noun}: stages wait for each other {much} of the step"
    if cost.kind == "optimizer-bound":
        return f"{noun}: the optimizer takes {much} of every step"
    if cost.kind == "host-bound":
        return f"{noun}: Python and launches take {much} of the profiled steps"
    if cost.kind == "memory-bound":
        return f"{noun}: operators limited by memory bandwidth take {much} of the profiled steps"
    took = "" if cost.event_ns is None else f" ({format_duration(cost.event_ns)} each)"
    where = "" if not cost.ranks or len(cost.ranks) == steps.ranks else f" on rank {', '.join(map(str, cost.ranks))}"
    when = "" if cost.period is None else f" {every}"
    what = {"evaluation": "it runs", "checkpointing": "it saves", "garbage-collection": "Python collects",
            "compilation": "torch.compile compiles again", "periodic-pause": "a pause that no call explains"}  # fmt: skip
    base = "wall time" if cost.of == "wall" else "time"
    return f"{noun}: {what[cost.kind]}{where}{when}{took} and takes {much} of the {base}"


def _straggler(cost: TimeCost, steps: JobSteps, late: tuple[Slow, ...]) -> str:
    names = ", ".join(map(str, cost.ranks))
    slow = next((each for each in late if each.kind == "chronic"), None)
    part = f" {PART_WORDS[slow.part]}" if slow is not None and slow.part is not None else ""
    excess = "" if cost.excess_ns is None else f" {format_duration(cost.excess_ns)} longer{part}"
    others = f"rank {1 - cost.ranks[0]} waits" if steps.world_size == 2 and len(cost.ranks) == 1 else "the others wait"
    return f"Straggler: rank {names} takes{excess} in every step; {others}: {percent(cost.share)} of the step"


def _evidence(steps: JobSteps, late: tuple[Slow, ...]) -> list[str]:
    said = []
    for slow in late:
        if slow.kind == "chronic" and slow.rank is not None:
            own, others = slow.others_ns + slow.excess_ns, slow.others_ns
            said.append(
                f"rank {steps.diaries[slow.rank].rank}: own time {format_duration(own)} a step, the others' "
                f"{format_duration(others)}; late in {format_percent(slow.late_steps / slow.steps)} of "
                f"{steps.steps:,} steps ({steps.own_clock})"
            )
    return said


def _between(verdict: JobVerdict, steps: JobSteps) -> list[str]:
    """Events too small for a verdict are said, too: of the job, not of a step."""
    told = {cost.kind for cost in verdict.costs}
    return [
        f"{each.kind.replace('_', ' ')}: {counted(each.count, 'time')}, {format_duration(each.mean_ns)} each, "
        f"{format_percent(each.share.value)} of the wall time"
        for each in between_steps(steps)
        if KIND_OF_EVENT.get(each.kind) not in told and each.share.value >= 0.005
    ]


def _drift(steps: JobSteps) -> list[str]:
    found = drift(steps)
    if found is None:
        return []
    change = found.after / found.before - 1
    way = "slower" if change > 0 else "faster"
    return [f"steps became {format_percent(abs(change))} {way} from step {steps.numbers[found.at]:,} on"]


def _restarted(end: JobEnd | None) -> list[str]:
    if end is None or not end.restarts:
        return []
    return [f"after {counted(end.restarts, 'restart')} by the launcher: steps are those of the last attempt"]


def _profiler(verdict: JobVerdict) -> list[str]:
    if verdict.step_ns is None or verdict.profiled_step_ns is None:
        return []
    change = verdict.profiled_step_ns / verdict.step_ns - 1
    known = "sizes above are those of timed steps"
    if any(cost.kind in OF_WINDOW for cost in verdict.costs):
        known = "sizes of profiled steps include the profiler's own time"
    return [
        f"a timed step takes {format_duration(verdict.step_ns)} (median), a profiled one "
        f"{format_duration(verdict.profiled_step_ns)} ({change:+.0%}): {known}"
    ]
