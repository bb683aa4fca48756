"""The one narrator: what findings, a whole diagnosis, a verdict and the evidence that they rest on say in a line or a few.

Terminal, page, summary and text report call it; what needs a job's timed steps is imported where a verdict is worded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from stepscope.core.units import format_bandwidth, format_bytes, format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted, grouped, listed, ranges
from stepscope.records.finding import (
    MOST_APART,
    Advice,
    ClockDrop,
    Diagnosis,
    Finding,
    JobChange,
    JobMemory,
    JobVerdict,
    MemoryGrowth,
    OperatorExcess,
    TimeCost,
    VerdictKind,
    VerdictPart,
)
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import LATE, TITLES

if TYPE_CHECKING:
    from stepscope.diagnose.costs import Causes
    from stepscope.records.comm import CommRow
    from stepscope.records.nouns import Estimate
    from stepscope.results.diary import JobSteps
    from stepscope.results.evidence import Evidence
    from stepscope.results.profiled_job import ProfiledJob
    from stepscope.results.slow_ranks import Slow

# A diagnosis

SHOWN = 4

ANSWERS = "fastest-strategy"
"""The rule that answers what runs side by side were measured for: its findings are shown although they cost nothing."""


def headline(finding: Finding) -> str:
    """The finding's title, with what it is about where the title does not say so."""
    about = "" if finding.subject is None or finding.subject in finding.title else f" ({finding.subject})"
    return f"{finding.title}{about}"


def all_clear(diagnosis: Diagnosis, *, complete: bool, judged: bool = True) -> str | None:
    """The sentence for a diagnosis without a problem; None where it has one.

    complete: all that was given was read. judged: there was something in which a problem shows: not lines of a log alone.
    """
    if any(finding.severity != "info" for finding in diagnosis.findings):
        return None
    looked = len(diagnosis.quiet) + len({finding.rule for finding in diagnosis.findings})
    if not looked:
        return f"nothing was checked: {counted(len(diagnosis.skipped), 'rule')} skipped for lack of data"
    if not judged:
        return "the text was read, and nothing in it shows what is wrong: give the logs of all ranks, or take a profile"
    if not complete:
        return f"{counted(looked, 'rule')} found no problem in what was read; what was not is listed below"
    return f"nothing stands out: {counted(looked, 'rule')} found no problem"


def counts(findings: Iterable[Finding]) -> str:
    """Count the findings by severity: ``1 problem, 2 warnings``."""
    by_severity = Counter[str](finding.severity for finding in findings)
    words = (("problem", "problem"), ("warning", "warning"), ("info", "observation"))
    return ", ".join(counted(by_severity[key], word) for key, word in words if by_severity[key])


def shown(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Return the first findings, and what the comparison says, however far down."""
    first, rest = diagnosis.findings[:SHOWN], diagnosis.findings[SHOWN:]
    return (*first, *[finding for finding in rest if finding.rule == ANSWERS][:SHOWN])


def answers_first(findings: Sequence[Finding]) -> list[Finding]:
    """Sort what the comparison says before the others, each in their order."""
    return sorted(findings, key=lambda finding: finding.rule != ANSWERS)


def remainder(diagnosis: Diagnosis) -> str:
    """Return ``2 more findings; `` where not all are shown, else nothing."""
    more = len(diagnosis.findings) - len(shown(diagnosis))
    return f"{counted(more, 'more finding')}; " if more > 0 else ""


def shown_by_window(verdict: JobVerdict, diagnosis: Diagnosis) -> str | None:
    """Say what profiled steps add: the operator that a late rank takes longer for, or what explains the verdict."""
    if verdict.operators:
        return _operator_text(verdict.operators[0])
    rules = verdict.costs[0].rules if verdict.costs else ()
    return next((headline(finding) for finding in diagnosis.findings if finding.rule in rules), None)


# The evidence


def looked_at(evidence: Evidence) -> str:
    """Say what was looked at: ``codeharris: 6 runs · 2 of them on several ranks``."""
    from stepscope.store.layout import profiled_job, shown_as

    parts = []
    if evidence.runs:
        parts.append(counted(len(evidence.runs), "training run"))
    if jobs := evidence.traced_jobs:
        ranks = sum(len({rank.facts.rank for one in job for rank in one.summary.ranks}) for job in jobs)
        captures = f" in {len(evidence.traces)} captures" if len(evidence.traces) > len(jobs) else ""
        parts.append(f"{counted(len(jobs), 'job')} traced on {counted(ranks, 'rank')}{captures}")
    timed = [
        job for job in evidence.profiled if job.steps and not any(trace.job == job.folder for trace in evidence.traces)
    ]
    parts += [
        f"{counted(job.steps.steps, 'step')} of {counted(job.steps.ranks, 'rank')} timed" for job in timed if job.steps
    ]
    for dry in evidence.dry:
        parts.append(f"{dry.name} run without data on {listed(map(str, dry.worlds)) or 'no'} GPUs")
    if evidence.comm:
        parts.append(counted(len(evidence.comm), "measured collective") + _measured_text(evidence.comm))
    for name, kind in (("nccl", "NCCL log"), ("memory", "memory snapshot")):
        if files := getattr(evidence, name):
            parts.append(counted(len(files), kind))
    if evidence.flight:
        parts.append(f"flight recorders: {counted(len(evidence.flight), 'finding')}")
    if evidence.signs:
        parts.append(f"{counted(len(evidence.signs), 'line')} on its end")
    for tool, count in Counter(reading.tool for reading in evidence.readings).items():
        parts.append(f"{counted(count, 'reading')} of {tool}")
    if evidence.topology is not None:
        parts.append("link matrix")
    several = {job[0].job for job in evidence.traced_jobs if len(job) > 1}
    paths = list(
        dict.fromkeys(
            job if (job := profiled_job(source.path)) in several and job is not None else shown_as(source.path)
            for source in evidence.sources
        )
    )
    names = ", ".join(path.name or str(path) for path in paths[:3])
    more = ", ..." if len(paths) > 3 else ""
    return f"{names}{more}: {' · '.join(parts) or 'nothing'}"


def _measured_text(rows: Sequence[CommRow]) -> str:
    """Say what was measured, where that is one or two collectives: `` (all_reduce on 8 ranks, up to 42 GB/s)``."""
    from stepscope.results.labels import comm_ranks_label, op_label

    best: dict[str, float] = {}
    for row in rows:
        label = f"{op_label(row)} on {comm_ranks_label(row)}"
        best[label] = max(best.get(label, 0.0), row.busbw_bytes_per_s or 0.0)
    texts = [f"{label}, up to {format_bandwidth(rate)}" for label, rate in best.items() if rate]
    return f" ({'; '.join(texts)})" if len(texts) == len(best) <= 2 else ""


def files_found(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """Return (``read`` or ``left out``, ``run2: 8 files of profiler traces, 512 MB``), those read first.

    Empty where everything in the folder was of one kind and read.
    """
    groups = evidence.files_found
    if len({group.kind for group in groups}) < 2 and not evidence.unread:
        return ()
    read = [group for group in groups if group.left_out is None]
    return tuple(
        (
            "read" if group.left_out is None else "left out",
            (f"{group.job}: " if group.job else "")
            + f"{counted(group.files, 'file')}, {format_bytes(group.bytes)}: {group.kind}"
            + ("" if group.left_out is None else f" ({group.left_out})"),
        )
        for group in (*read, *(group for group in groups if group.left_out is not None))
    )


# A verdict on one's own job, as first screen and page show it

MOST_RANKS = 8
"""Ranks of a part that are named one by one."""

MOST_FASTER = 10
"""From here on a share of the step is known too little to say by how much."""


def faster(stake: float) -> str:
    """Say how much faster a step is without this share of it: ``up to 1.8x faster``."""
    if stake >= 1 - 1 / MOST_FASTER:
        return f"more than {MOST_FASTER}x faster"
    return f"up to {1 / (1 - stake):.2g}x faster"


def slowed(verdict: JobVerdict) -> str:
    """Say what sizes of profiled steps are worth: ``at 2.1x their time: only order, names and counts hold``, or nothing."""
    if verdict.slowdown is None:
        return ""
    text = f"at {verdict.slowdown:.1f}x their time"
    if verdict.window_sized:
        return text
    apart = "" if (verdict.slowed_apart or 1.0) <= MOST_APART else ", unequally over ranks"
    return f"{text}{apart}: only order, names and counts hold"


def coverage(verdict: JobVerdict) -> tuple[tuple[str, str], ...]:
    """Return (what, how much) that the verdict rests on: stake, steps, ranks; nothing for a job that made no step."""
    if not verdict.steps_timed and not verdict.steps_profiled:
        return ()
    parts = []
    if verdict.stake_fraction:
        parts.append(("stake", faster(verdict.stake_fraction)))
    profiled = f", {verdict.steps_profiled} profiled" if verdict.steps_profiled else ""
    profiled += f" {slowed(verdict)}" if profiled and verdict.slowdown is not None else ""
    made = "" if verdict.steps_made is None else f" of {verdict.steps_made:,}"
    parts.append(("steps", f"{verdict.steps_timed:,}{made} timed{profiled}"))
    world = verdict.world_size or verdict.ranks_seen
    hosts = f" on {counted(verdict.hosts, 'host')}" if verdict.hosts > 1 else ""
    parts.append(("ranks", f"{verdict.ranks_seen} of {world}{hosts}"))
    return tuple(parts)


def coverage_line(verdict: JobVerdict) -> str:
    """Steps and ranks as text; empty where there are none."""
    return "; ".join(f"{what} {much}" for what, much in coverage(verdict) if what != "stake")


def also(verdict: JobVerdict) -> tuple[str, ...]:
    """A line for each cost that the headline does not tell."""
    return tuple(cost.line for cost in verdict.costs if cost.line and cost.line != verdict.headline)


def tree_rows(parts: Sequence[VerdictPart], depth: int = 0) -> Iterator[tuple[int, VerdictPart]]:
    """The parts of a tree, each with its depth, each above those that it consists of."""
    for part in parts:
        yield depth, part
        yield from tree_rows(part.parts, depth + 1)


def part_name(part: VerdictPart) -> str:
    return TITLES.get(part.key, part.key)


def by_rank(part: VerdictPart, *, most: int = MOST_RANKS) -> str:
    """The ranks of a part, where they differ (else empty): each of at most so many, or the least and the most."""
    if len(part.by_rank) > most:
        low, high = (pick(part.by_rank, key=lambda pair: pair[1]) for pick in (min, max))
        return f"rank {low[0]} {format_duration(low[1])} .. rank {high[0]} {format_duration(high[1])}"
    return ", ".join(f"rank {rank} {format_duration(ns)}" for rank, ns in part.by_rank)


def most_of_ranks(part: VerdictPart) -> str:
    """The rank with most of a part, where ranks differ (else empty)."""
    rank, ns = max(part.by_rank, key=lambda pair: pair[1], default=(None, 0.0))
    return "" if rank is None else f"most: rank {rank} {format_duration(ns)}"


# Its words: a noun that everybody in the field uses, one number, one interval; then what to do

_NOUNS: Mapping[VerdictKind, str] = {
    "before-forward": "Before the forward pass",
    "inference": "Forward passes without gradients",
    "worker-start": "Starting loader workers",
    "computation-or-python": "Computation or Python",
}


def noun(kind: VerdictKind) -> str:
    """Return what the field calls a verdict: ``Communication-bound``, ``Uneven work``."""
    return _NOUNS.get(kind) or kind.replace("-", " ").replace(" bound", "-bound").capitalize()


_ENDS = ("crash", "killed", "hang", "no-steps")


def worded(verdict: JobVerdict, steps: JobSteps, causes: Causes) -> JobVerdict:
    """The verdict with its headline, evidence, notes and advice."""
    from stepscope.diagnose.advice import advice_for

    job, late = causes.job, causes.late
    straggles = any(cost.kind == "straggler" for cost in verdict.costs)
    memory, headline = verdict.memory, _first_verdict_line(verdict, steps, causes)
    if (leak := soon(verdict)) is not None:
        headline = f"Memory leak: {_growth_line(leak, verdict)}"
    elif verdict.ended == "out-of-memory" and memory is not None and memory.growth:
        headline = f"{headline}; until then {_growth_line(replace(memory.growth[0], full_s=None), verdict)}"
    return replace(
        verdict,
        headline=headline,
        memory=None if memory is None else replace(memory, line=_memory_line(memory, verdict)),
        change=None if verdict.change is None else replace(verdict.change, line=_change_line(verdict.change)),
        clocks=tuple(replace(clock, line=_clock_line(clock, steps.ranks)) for clock in verdict.clocks),
        costs=tuple(replace(cost, line=cost_line(cost, steps, late)) for cost in verdict.costs),
        evidence=(
            *(_late_lines(steps, late) if straggles else ()),
            *map(_operator_text, verdict.operators),
            *(_clock_line(clock, steps.ranks) for clock in verdict.clocks),
        ),
        notes=tuple(_verdict_notes(verdict, steps, causes)),
        advice=_longer_job_advice(job) if verdict.kind == "undecided" else advice_for(verdict, causes),
    )


def _verdict_notes(verdict: JobVerdict, steps: JobSteps, causes: Causes) -> Iterator[str]:
    """Yield what the steps are of, what the tool did to them, what is missing, and what else happened."""
    from stepscope.results.diary import EVENT_WORDS, KIND_OF_EVENT, longest_step
    from stepscope.results.goodput import goodput_of
    from stepscope.results.profiled_job import end_sentence

    end, moved = causes.job.end, steps.window
    if end is not None and end.kind == "interrupted":
        yield end_sentence(end)
    if steps.first:
        of = counted(len(steps.processes), "process")
        yield f"of {of} the last steps are read: {steps.first + 1:,} to {steps.all_steps:,}"
    if moved is not None:
        cut = "sizes are those before" if int(steps.numbers[-1]) < moved.first else "sizes are mostly those after"
        yield (
            f"the window of profiled steps changed the job: steps before it take {format_duration(moved.before.value)}, "
            f"after it {format_duration(moved.after.value)} (the allocator's state, as a rule); {cut}"
        )
    recorded = {process.rank for process in steps.processes if process.steps}
    absent = [] if steps.independent else sorted(set(range(steps.world_size)) - recorded)
    if absent:
        yield f"no step of rank {ranges(absent)} is recorded: it called no optimizer's step(), or left no diary"
    stopped = [(d, off) for d in steps.diaries if (off := next((e for e in d.events if e.kind == "off"), None))]
    for diary, off in stopped[: MOST_MISSING - bool(absent)]:
        yield f"rank {diary.rank}: not all is recorded from step {off.step:,} on: {off.what}"
    if not steps.together:
        yield "ranks do not end their steps together: they count them differently, or do not wait; none is late"
    made = grouped(steps.diaries, lambda diary: diary.made)
    least, most = min(made), max(made)
    if end is not None and most - least > 1:
        cut_off = [f"{counted(n, 'step')} of rank {ranges([d.rank for d in made[n]])}" for n in (least, most)]
        yield f"recorded are {', '.join(cut_off)}: figures are of those that all ranks have"
    if end is not None and end.code == 0 and (silent := [diary.rank for diary in steps.diaries if diary.end is None]):
        yield f"rank {ranges(silent)} left no word of its end: its last steps may be missing"
    if steps.trainings != 1:
        yield (
            f"{steps.trainings} trainings one after the other, no restart: figures are those of number {steps.training}"
        )
    goodput = goodput_of([causes.job])
    counted_restarts = 0 if goodput is None else goodput.restarts
    if restarts := max(counted_restarts, 0 if end is None else end.restarts):
        yield f"after {counted(restarts, 'restart')} by the launcher: steps are those of the last attempt"
    if goodput is not None and counted_restarts:
        much = {part: format_percent(goodput.share(part)) for part in ("productive", "restart", "repeated")}
        again = counted(goodput.repeated_steps, "step")
        lost = f", {again} lost by them {much['repeated']}" if goodput.repeated_steps else ""
        yield (
            f"goodput {much['productive']} of {format_duration(goodput.wall_ns)}; restarts take {much['restart']}{lost}"
        )
    kinds = {cost.kind for cost in verdict.costs}
    for event in causes.events:  # too small for a verdict
        if KIND_OF_EVENT.get(event.kind) not in kinds and event.share.value >= WORTH_A_NOTE:
            yield (
                f"{EVENT_WORDS[event.kind]}: {counted(event.count, 'time')}, {format_duration(event.mean_ns)} each, "
                f"{format_percent(event.share.value)} of the wall time"
            )
    longest = longest_step(steps)
    if longest is not None:
        what = "" if longest.event is None else f" ({EVENT_WORDS[longest.event]})"
        rank = f" on rank {longest.rank}" if steps.ranks > 1 else ""
        yield f"longest step: {longest.number:,}, {format_duration(longest.ns)}{rank}{what}"


MOST_MISSING = 3
"""Lines on what was not recorded."""

WORTH_A_NOTE = 0.005
"""Of the wall time, for events between steps."""


def _late_lines(steps: JobSteps, late: tuple[Slow, ...]) -> Iterator[str]:
    """Yield a line for each rank, host or rail that is late."""
    for name, slow in slow_things(steps, late):
        for one in slow[:MOST_RANKS] if slow[0].of == "rank" else slow[:1]:
            who = name if one.of != "rank" or one.rank is None else f"rank {steps.rank_numbers[one.rank]}"
            yield (
                f"{who}: own time {format_duration(one.others_ns + one.excess_ns)} a step, the others' "
                f"{format_duration(one.others_ns)}; late in {format_percent(one.late_steps / one.steps)} of "
                f"{steps.steps:,} steps ({steps.own_clock})"
            )


def _longer_job_advice(job: ProfiledJob) -> tuple[Advice, ...]:
    """Say what to do about a job of too few steps."""
    import shlex  # of these alone

    kind = "run" if job.record.first is None else "profile"
    command = f"stepscope {kind} -- {shlex.join(job.record.command)}"
    return (Advice(text="train for 50 steps or more, then the same command", command=command),)


def percent(share: Estimate) -> str:
    """Format a share as ``38 % (±2)``, with the interval's half width in points where there is one."""
    text, half = format_percent(share.value), share.half_width
    if half is None:
        return text
    points = f"{100 * half:.0f}" if half >= 0.005 else "<1"
    return f"{text} (±{points})"


def _first_verdict_line(verdict: JobVerdict, steps: JobSteps, causes: Causes) -> str:
    """Return the first line of the verdict."""
    from stepscope.results.profiled_job import end_sentence

    end = causes.job.end
    if verdict.kind in _ENDS and end is not None:
        return end_sentence(end)
    if verdict.kind == "independent-processes":
        if steps.independent:
            same = sum(process.rank == steps.rank_numbers[0] for process in steps.processes)
            return f"{noun(verdict.kind)}: {counted(same, 'process')} train at the same time without a process group"
        seen = any(part.key == "communication" and part.share > 0 for part in verdict.tree)  # a sum of losses, say
        what = "no profiled step reduces gradients" if seen else "none ever communicates"
        return f"{noun(verdict.kind)}: {counted(steps.ranks, 'rank')} train, and {what}"
    if verdict.kind == "undecided":
        return f"{counted(steps.steps, 'timed step')}: too few for a verdict"
    if verdict.costs:
        return cost_line(verdict.costs[0], steps, causes.late)
    share = next((part.share for part in verdict.tree if part.key == "computation"), None)
    if share is None:
        from stepscope.diagnose.rule import WORTH  # `trace` shows a budget without what rules share

        return f"Compute-bound: no part of the step outside computation takes {format_percent(WORTH)} of it"
    if verdict.kind == "computation-or-python":
        return f"{noun(verdict.kind)}: together {format_percent(share)} of every step; a window of steps separates them"
    return f"Compute-bound: {format_percent(share)} of every step is computation"


MOST_GROUPS = 4
"""In the line; the table has all."""

SOON_S = 3_600.0
"""Until a memory is full: from then on the headline says so, whatever the steps cost."""


def soon(verdict: JobVerdict) -> MemoryGrowth | None:
    """Return the memory that is full first, within the hour and while the job runs, or None."""
    leaks = () if verdict.memory is None or verdict.ended is not None else verdict.memory.growth
    full = [(leak.full_s, at) for at, leak in enumerate(leaks) if leak.full_s is not None and leak.full_s < SOON_S]
    return leaks[min(full)[1]] if full else None


def _memory_line(memory: JobMemory, verdict: JobVerdict) -> str:
    """Return the memory in words: ``1.20 GiB a rank, steady``, ``+1.0 MiB a step on rank 1; host memory full in 3 h``."""
    if memory.growth:
        return "; ".join(_growth_line(growth, verdict) for growth in memory.growth)
    parts = [f"{format_bytes_binary(memory.host_bytes)} a rank"] if memory.host_bytes else []
    if memory.device_used_bytes is not None and memory.device_total_bytes:
        total = format_bytes_binary(memory.device_total_bytes)
        parts.append(f"{format_bytes_binary(memory.device_used_bytes)} of {total} on the device")
    elif memory.device_bytes:
        parts.append(f"{format_bytes_binary(memory.device_bytes)} of its device")
    return ", ".join([*parts, "steady"] if memory.steady else parts)


def _growth_line(growth: MemoryGrowth, verdict: JobVerdict) -> str:
    """Say how much memory each step takes more, and when it is full."""
    some = len(growth.ranks) < verdict.ranks_seen
    who = f" on rank {listed(growth.ranks, at_most=MOST_RANKS)}" if some else " on every rank"
    who = "" if verdict.ranks_seen == 1 else who
    what = "" if growth.of == "host" else " of device memory"
    where = f" of {growth.host}" if growth.host else ""
    when = "full in" if verdict.ended is None else "would be full after another"
    full = "" if growth.full_s is None else f"; {growth.of} memory{where} {when} {_rough_duration(growth.full_s)}"
    unit, scale = next(
        (u for u in (("GiB", 2**30), ("MiB", 2**20)) if growth.per_step.value > 0.9 * u[1]), ("KiB", 2**10)
    )
    return f"+{growth.per_step.value / scale:.1f} {unit} a step{what}{who}{full}"


def _rough_duration(seconds: float) -> str:
    """Say a time as roughly as it is known, being extrapolated: ``40 min``, ``3 h``, ``12 days``."""
    for length, unit in ((172_800.0, 86_400.0), (5_400.0, 3_600.0)):
        if seconds >= length:
            return f"{seconds / unit:.0f} {'days' if unit > 3_600 else 'h'}"
    return f"{max(1.0, seconds / 60):.0f} min"


_TAKES: Mapping[VerdictKind, str] = {
    "input-bound": "every step waits {} of its time for data",
    "before-forward": "the loop's own code takes {} of every step before its forward pass",
    "inference": "they take {} of every step",
    "uneven-work": "ranks take turns in being last; the others wait {} of the step",
    "communication-bound": "communication that no computation hides takes {} of every step",
    "pipeline-bubble": "stages wait for each other {} of the step",
    "optimizer-bound": "the optimizer takes {} of every step",
    "host-bound": "Python and launches take {} of the profiled steps",
    "memory-bound": "operators limited by memory bandwidth take {} of the profiled steps",
}
_HAPPENS: Mapping[VerdictKind, str] = {
    "evaluation": "it runs",
    "inference": "a series of them runs",
    "worker-start": "it happens",
    "checkpointing": "it saves",
    "garbage-collection": "Python collects",
    "compilation": "torch.compile compiles again",
    "periodic-pause": "a pause that no call explains",
}


def cost_line(cost: TimeCost, steps: JobSteps, late: tuple[Slow, ...] = ()) -> str:
    """A cost as a headline: noun, who, number."""
    from stepscope.results.diary import crowd

    much = percent(cost.share)
    if cost.kind == "straggler":
        return _straggler_text(cost, steps, late)
    if cost.kind == "contended-machine":
        full = crowd(steps)
        sentence = f"ranks are ready to run and wait for a processor {much} of the step"
        if full is not None:
            sentence += f"; {counted(full.ranks, 'rank')} with {full.threads} threads share {full.cores} cores"
    elif cost.kind == "input-bound" and cost.period is not None and cost.event_ns is not None:
        who = "" if not cost.ranks or len(cost.ranks) == steps.ranks else f" on rank {listed(cost.ranks)}"
        length = format_duration(cost.event_ns)
        often = "every step" if cost.period == 1 else f"every {cost.period} steps one"
        sentence = f"{often} waits {length} for data{who} and takes {much} of the time"
    elif cost.kind == "input-bound" and cost.rules == ("before",):
        sentence = f"the loop waits {much} of every step before its forward pass, outside any DataLoader"
    elif cost.kind == "host-bound" and cost.event_ns is not None:
        sentence = f"launching operators, {format_duration(cost.event_ns)} for each, takes {much} of every step"
    elif cost.kind == "communication-bound" and any(slow.kind in ("chronic", "rotating") for slow in late):
        sentence = f"transfers that no computation hides take {much} of every step, beside waits for late ranks"
    elif cost.kind in _TAKES and cost.of == "step":
        sentence = _TAKES[cost.kind].format(much)
    else:
        took = "" if cost.event_ns is None else f" ({format_duration(cost.event_ns)} each)"
        where = (
            "" if not cost.ranks or len(cost.ranks) == steps.ranks else f" on rank {', '.join(map(str, cost.ranks))}"
        )
        when = "" if cost.period is None else f" every {cost.period} steps" if cost.period > 1 else " in every step"
        base = "wall time" if cost.of == "wall" else "time"
        sentence = f"{_HAPPENS[cost.kind]}{where}{when}{took} and takes {much} of the {base}"
    return f"{noun(cost.kind)}: {sentence}"


NEARLY_ALL = 0.95
"""Of a rank's excess: a part that holds less of it is told with its own number."""


def _straggler_text(cost: TimeCost, steps: JobSteps, late: tuple[Slow, ...]) -> str:
    """Say by how much a rank is late, and the part of the step that it is."""
    slow = next((late_rank for late_rank in late if late_rank.kind == "chronic"), None)
    excess = "" if cost.excess_ns is None else f" {format_duration(cost.excess_ns)} longer"
    if slow is not None and slow.part is not None:
        some = slow.part_ns is not None and slow.part_ns < NEARLY_ALL * slow.excess_ns
        excess += f", {format_duration(slow.part_ns)} of it" if some and slow.part_ns is not None else ""
        excess += f" {LATE[slow.part]}" + ("," if some else "")
    costly = [
        late_rank
        for late_rank in late
        if late_rank.rank is not None and steps.rank_numbers[late_rank.rank] in cost.ranks
    ]
    names = " and ".join(name for name, _ in slow_things(steps, costly)) or f"rank {listed(cost.ranks)}"
    return f"Straggler: {names} takes{excess} in every step, which costs {percent(cost.share)} of the step"


MOST_THINGS = 4
"""Hosts, rails, or ranks together, that are named as late."""


def slow_things(steps: JobSteps, late: Sequence[Slow]) -> list[tuple[str, list[Slow]]]:
    """Name what the others wait for, the costliest first, with its ranks: ``rank 3``, ``host n17 (ranks 136-143)``, ``rail 2
    (that GPU of all 512 hosts)``. Single ranks are one entry."""
    by_subject = grouped(
        (late_rank for late_rank in late if late_rank.kind == "chronic"), lambda late_rank: late_rank.about
    )
    alone = [late_rank for about, slow in by_subject.items() if about[0] == "rank" for late_rank in slow]

    def numbers(slow: Sequence[Slow]) -> list[int]:
        return [steps.rank_numbers[late_rank.rank] for late_rank in slow if late_rank.rank is not None]

    rows = []
    for (of, which), slow in by_subject.items():
        if of == "host":
            rows.append((f"host {which} (ranks {ranges(numbers(slow))})", slow))
        elif of == "rail":
            hosts = len(set(steps.hosts))
            rows.append(
                (f"rail {which} (local rank {which} of {'both' if hosts == 2 else f'all {hosts}'} hosts)", slow)
            )
    if alone:
        rows.append((f"rank {listed(numbers(alone), at_most=MOST_RANKS)}", alone))
    return rows[:MOST_THINGS]


def _operator_text(excess: OperatorExcess) -> str:
    """Say what an operator takes longer, on a slow rank or in a slow step."""
    more = format_duration(excess.excess_ns)
    ratio = [] if excess.ratio is None else [f"{excess.ratio - 1:+.0%}"]
    if excess.against is None:
        seen = ", ".join([*ratio, f"{counted(len(excess.steps), 'slow step')} profiled"])
        return f"a slow step spends {more} more in {excess.name} on rank {excess.rank} ({seen})"
    if excess.calls is not None and excess.calls_against is not None:
        equal = abs(excess.calls - excess.calls_against) <= 0.01 * excess.calls
        other = f"in {excess.calls:.3g} calls, rank {excess.against} {excess.calls_against:.3g}"
        ratio.append("in as many calls" if equal else other)
    against = f"than rank {excess.against} ({', '.join(ratio)})"
    return f"rank {excess.rank} spends {more} more of a profiled step in {excess.name} {against}"


def _clock_line(drop: ClockDrop, ranks: int) -> str:
    """``the GPU of rank 5 ran at 1.20 GHz, those of the other ranks at 1.70: thermal slowdown (88 °C)``."""
    one = len(drop.ranks) == 1
    who = f"{'GPU' if one else 'GPUs'} of {'every rank' if len(drop.ranks) == ranks else f'rank {ranges(drop.ranks)}'}"
    against = "before the change at" if drop.before else "GPUs of the other ranks at"
    why = ", ".join(drop.reasons)
    if why and any("thermal" in reason for reason in drop.reasons) and drop.temperature_c is not None:
        why += f" ({drop.temperature_c:.0f} °C)"
    if drop.power_limit_w is not None and drop.power_limit_against_w is not None:
        why += f" at {drop.power_limit_w:.0f} W, there {drop.power_limit_against_w:.0f} W"
    return (
        f"{who} ran at {drop.sm_clock_hz / 1e9:.2f} GHz, {against} {drop.against_hz / 1e9:.2f} GHz"
        f"{f': {why}' if why else ''}"
    )


def by_group(verdict: JobVerdict) -> tuple[str, ...]:
    """One line: ``exposed communication by group: dp 39.6 ms (all_gather 23.1 ms, reduce_scatter 16.5 ms), tp 21.9 ms``."""
    groups = grouped(verdict.groups, lambda row: row.group)
    parts = []
    for name, same in sorted(groups.items(), key=lambda item: -sum(row.ns for row in item[1])):
        operations = [f"{row.operation} {format_duration(row.ns)}" for row in same]
        of = same[0].operation if len(same) == 1 else ", ".join(operations)
        parts += [f"{name} {format_duration(sum(row.ns for row in same))} ({of})"] if len(groups) > 1 else operations
    by = "group" if len(groups) > 1 else "operation"
    return (f"{EXPOSED_COMM} by {by}: {listed(parts, at_most=MOST_GROUPS)}",) if parts else ()


def _change_line(change: JobChange) -> str:
    """``since step 12,400 (Nov 26, 14:02 CET) steps take 8% longer on rank 5 alone (n17), most of it in backward``."""
    ratio = change.ratio.value - 1
    when = (
        ""
        if change.unix_s is None
        else f" ({datetime.fromtimestamp(change.unix_s).astimezone().strftime('%b %-d, %H:%M %Z')})"
    )
    who = f" on rank {listed(change.ranks, at_most=MOST_RANKS)} alone" if change.ranks else ""
    who = " on all ranks" if change.all_ranks else who
    where = f" ({', '.join(change.hosts)})" if change.hosts else ""
    part = "" if change.part is None else f", most of it in {TITLES[change.part]}"
    way = "longer" if ratio > 0 else "less"
    return f"since step {change.step:,}{when} steps take {format_percent(abs(ratio))} {way}{who}{where}{part}"


def below(verdict: JobVerdict) -> tuple[str, ...]:
    """Return the notes, a lasting change first."""
    change = () if verdict.change is None or not verdict.change.line else (verdict.change.line,)
    return (*change, *verdict.notes)
