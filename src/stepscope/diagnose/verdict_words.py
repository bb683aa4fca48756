"""What a verdict says: a noun that everybody in the field uses, one number, one interval; then what to do."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.verdict_advice import advice_for
from stepscope.diagnose.verdict_kinds import KIND_OF_EVENT
from stepscope.records.finding import Diagnosis, JobVerdict, Share, TimeCost, VerdictKind
from stepscope.records.profile import JobEnd
from stepscope.results.diary import JobSteps, between_steps, crowd, drift
from stepscope.results.profiled_job import ProfiledJob, end_sentence
from stepscope.results.slow_ranks import Slow

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


def percent(share: Share) -> str:
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
