"""The verdict on one's own job: sizes from all steps of the diary, causes from the window of profiled steps.

What costs time is measured on the timed steps (``results/diary.py``); rules, which read the window, say why and what to do.
Of what only a window shows (Python, launches, memory bandwidth) the size is the window's, and the verdict says so.

The parts of a timed step are a tree that adds up: mean time of all ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import PART_OF
from stepscope.diagnose.costs import SIZED, Causes, causes_of, costs_of
from stepscope.diagnose.narrator import slowed, worded
from stepscope.diagnose.rule import PARTS_OF_CLAIM, WORTH
from stepscope.diagnose.rules import claimed_part, kind_of
from stepscope.diagnose.why import why_of
from stepscope.records.finding import (
    Diagnosis,
    Finding,
    JobVerdict,
    OperatorExcess,
    Quiet,
    TimeCost,
    VerdictKind,
)
from stepscope.records.profile import JobEnd
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.diary import (
    FEW_STEPS,
    KIND_OF_EVENT,
    JobSteps,
    step_interval,
)
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.group_waits import group_waits
from stepscope.results.hardware import clocks_of_change, clocks_of_late
from stepscope.results.job_change import job_change
from stepscope.results.memory_growth import job_memory
from stepscope.results.profiled_job import ProfiledJob, end_sentence
from stepscope.stats.step_table import tree_of
from stepscope.traces.slow_operators import slow_operators, slow_step_operators

_END: dict[str, VerdictKind] = {
    "crash": "crash",
    "exit-code": "crash",
    "killed": "killed",
    "out-of-memory": "killed",
    "hang": "hang",
    "no-steps": "no-steps",
}
"""Ends of a job that come before whatever its steps say."""

_PAUSES = frozenset({*KIND_OF_EVENT.values(), "periodic-pause"})


@record
class Judged:
    """The verdict, and evidence and diagnosis without what all steps refute, with stakes of the diary where it has them."""

    verdict: JobVerdict
    evidence: Evidence
    diagnosis: Diagnosis


def judge(evidence: Evidence, diagnosis: Diagnosis) -> Judged | None:
    """The verdict on the only profiled job of ``evidence``; None where there is none, or more than one, or nothing known."""
    if len(evidence.profiled) != 1:
        return None
    job = evidence.profiled[0]
    if job.steps is None:
        ended = None if job.end is None else failed_verdict(job.end)  # it goes on, or its end says nothing
        if ended is None:
            return None
        ended = replace(ended, ranks_seen=len({diary.rank for diary in job.diaries}))
        return Judged(verdict=ended, evidence=evidence, diagnosis=diagnosis)
    windows = windows_of(evidence, job)
    causes = causes_of(job, job.steps, diagnosis, windows[-1].summary if windows else None)
    of_job = verdict(job.steps, causes)
    traces = [
        replace(trace, summary=borne_out(trace.summary, of_job)) if evidence.profiled_of(trace) is job else trace
        for trace in evidence.traces
    ]
    return Judged(
        verdict=of_job,
        evidence=replace(evidence, traces=tuple(traces)),
        diagnosis=_sized_diagnosis(of_job, causes) if causes.sized else diagnosis,
    )


def failed_verdict(end: JobEnd) -> JobVerdict | None:
    """The verdict on how a job failed, by its end alone; None where it did not fail."""
    if end.kind not in _END:
        return None
    return JobVerdict(
        kind=_END[end.kind],
        ranks=end.ranks,
        confidence="likely" if end.likely else "certain: the job's own end",
        headline=end_sentence(end),
        world_size=end.world_size,
        ended=end.kind,
    )


def windows_of(evidence: Evidence, job: ProfiledJob) -> tuple[TraceEvidence, ...]:
    """The traced jobs that are windows of this one, in their order; the latest is the deep look at what a verdict names."""
    return tuple(trace for trace in evidence.traces if evidence.profiled_of(trace) is job)


def verdict(table: JobSteps, causes: Causes) -> JobVerdict:
    """The verdict on a table of steps: what takes its time, which of the causes explains it, why, and what to do."""
    job, diagnosis, few = causes.job, causes.diagnosis, table.steps < FEW_STEPS
    failed = job.end if job.end is not None and job.end.kind in _END else None
    # How a job failed comes before what its steps cost; the tree still shows it.
    costs = [] if failed is not None or few else costs_of(table, causes)
    kind: VerdictKind = "compute-bound" if causes.seen else "computation-or-python"
    ranks: tuple[int, ...] = ()
    if failed is not None:
        kind, ranks = _END[failed.kind], failed.ranks
    elif table.independent or causes.findings("independent-processes"):
        kind = "independent-processes"
    elif costs:
        kind, ranks = costs[0].kind, costs[0].ranks
    elif few:
        kind = "undecided"
    doubts = dict.fromkeys(d for f in diagnosis.findings if costs and f.rule in costs[0].rules for d in f.doubts)
    if costs and costs[0].kind not in SIZED and doubts:
        confidence = f"doubtful: {'; '.join(doubts)}"
    elif few:
        confidence = f"undecided: {table.steps} steps are too few"
    else:
        apart = "" if kind != "computation-or-python" else "; without profiled ones computation and Python are one"
        confidence = f"measured over {table.steps} steps{apart}"
    late, change, timed = _late_ranks_of(costs), job_change(table), step_interval(table)
    slower = change if change is not None and change.slower else None
    operators: tuple[OperatorExcess, ...] = ()
    if causes.window is not None:
        passes, named = causes.window.ranks, late.union(slower.ranks if slower else ())
        # Without late ranks, those of steps that are slow now and then.
        pausing = not named and any(cost.kind == "periodic-pause" for cost in costs)
        operators = slow_step_operators(passes) if pausing else slow_operators(passes, named)
    # A clock is no cause of waiting for data.
    waiting = {table.rank_numbers[slow.rank] for slow in causes.late if slow.rank is not None and slow.part == "data"}
    clocks = clocks_of_late(table, late - waiting)
    if slower and slower.part != "data":
        changed = table.rank_numbers if slower.all_ranks else slower.ranks
        clocks += clocks_of_change(table, slower.step, changed)
    first = costs[0] if costs and costs[0].kind == kind else None
    plain = JobVerdict(
        kind=kind,
        ranks=ranks,
        share=first.share if first else None,
        of=first.of if first else "step",
        stake_fraction=first.stake_fraction if first else None,
        confidence=confidence,
        headline="",
        costs=tuple(costs),
        step_ns=timed.value,
        step_low_ns=timed.low,
        step_high_ns=timed.high,
        profiled_step_ns=job.profiled_step_ns,
        slowdown=causes.slowdown,
        slowed_apart=causes.apart,
        steps_timed=table.steps,
        steps_made=table.all_steps,
        steps_profiled=job.steps_profiled,
        ranks_seen=table.ranks,
        world_size=table.world_size,
        hosts=len(set(table.hosts)),
        ended=job.end.kind if job.end else None,
        memory=job_memory(table),
        change=change,
        operators=operators,
        groups=group_waits(table),
        clocks=clocks,
    )
    part = PART_OF.get(plain.marked)
    if part == "data" and causes.parts["data"].sum() < causes.parts["before"].sum():
        part = "before"
    elif plain.marked == "communication-bound" and causes.settled:  # what it takes itself is its transfer
        part = "transfer"
    in_words = worded(replace(plain, tree=tree_of(table, causes.parts, marked=part)), table, causes)
    return replace(in_words, why=why_of(in_words, causes))


def borne_out(summary: TraceSummary, verdict: JobVerdict) -> TraceSummary:
    """The window without stragglers that the timed steps do not show: what it says of one is not what the job does."""
    report = summary.stragglers
    if report is None or not verdict.steps_timed:
        return summary
    late = _late_ranks_of(verdict.costs)
    kept = tuple(straggler for straggler in report.stragglers if straggler.rank in late)
    if len(kept) == len(report.stragglers):
        return summary
    who = "no other rank" if kept else "no rank"
    text = f"{who} is late in the {counted(verdict.steps_timed, 'timed step')}, whatever profiled ones show"
    return replace(summary, stragglers=replace(report, stragglers=kept, pattern="none", text=text))


def _late_ranks_of(costs: Iterable[TimeCost]) -> set[int]:
    return {rank for cost in costs if cost.kind == "straggler" for rank in cost.ranks}


def _sized_diagnosis(verdict: JobVerdict, causes: Causes) -> Diagnosis:
    """The findings of the window, as far as the timed steps bear them out, with the stakes of these.

    What the timed steps size is told by the verdict, and by findings that name its cause. A window whose sizes do not hold
    sizes nothing. Quiet says what was left out, with the timed figure.
    """
    by_kind = {cost.kind: cost for cost in verdict.costs}
    diagnosis = causes.diagnosis
    of_window = {doubt.why for finding in diagnosis.findings for doubt in finding.casts_doubt.values()}
    lost = causes.lost

    def as_timed(finding: Finding) -> Finding | str:
        """Return it with its stake, or why it is left out."""
        kind, parts = kind_of(finding), PARTS_OF_CLAIM[claimed_part(finding)]
        limit = sum(part.share for part in verdict.tree if part.key in parts) if parts else None
        if finding.rule == "long-gap" and by_kind.keys() & _PAUSES:
            return "the verdict names what happens then"
        if finding.rule == "profiler-overhead":
            return "sizes are those of timed steps"
        if kind == "compute-bound" and finding.severity == "info":
            return "the verdict has the size of timed steps"
        if kind in causes.measured and finding.severity != "info":
            cost = by_kind.get(kind)
            if cost is None:
                return f"in the window only, not in the {verdict.steps_timed} timed steps"
            if finding.cause or kind in ("straggler", "input-bound", "optimizer-bound"):
                whole = finding.rule == cost.cause
                return _of_timed(finding, cost.stake_fraction, verdict, doubts=of_window, whole=whole)
            return f"the verdict has its size: {format_percent(cost.share.value)} of the timed steps"
        if finding.stake_fraction is None or finding.job is None:
            return finding
        if not verdict.window_sized:
            return f"profiled steps are {slowed(verdict)}"
        if claimed_part(finding) == "idle" and finding.stake_fraction - lost < WORTH:
            return f"events between steps, and waits for a processor, take {format_percent(lost)} of the profiled steps"
        if limit is not None and limit < WORTH:
            return f"that part takes {format_percent(limit)} of the timed steps"
        return _of_timed(finding, limit, verdict, doubts=())

    outcomes = [(finding, as_timed(finding)) for finding in diagnosis.findings]
    left = [Quiet(rule=of.rule, looked_at=f"{of.title}: {why}") for of, why in outcomes if isinstance(why, str)]
    return replace(
        diagnosis,
        findings=tuple(kept for _, kept in outcomes if isinstance(kept, Finding)),
        quiet=tuple(sorted((*diagnosis.quiet, *left), key=lambda rule: rule.rule)),
    )


def _of_timed(
    finding: Finding, most: float | None, verdict: JobVerdict, *, doubts: Container[str], whole: bool = False
) -> Finding:
    """The finding with a stake of at most so much; where it names its cause, that in place of the window's size.

    whole: the verdict's stake is this cause's.
    """
    stakes = [fraction for fraction in (None if whole else finding.stake_fraction, most) if fraction is not None]
    stake = min(stakes, default=None)
    title = finding.title
    if finding.cause:
        title = finding.cause + ("" if stake is None else f": up to {format_percent(stake)} of the step")
    rests_on = f"of {counted(verdict.steps_profiled, 'profiled step')}" if verdict.steps_profiled else "of the window"
    return replace(
        finding,
        title=title,
        evidence=tuple(f"{rests_on}: {line}" if at == 0 else line for at, line in enumerate(finding.evidence)),
        stake_fraction=stake,
        doubts=tuple(doubt for doubt in finding.doubts if doubt not in doubts),
    )
