"""The verdict on one's own job: sizes from all steps of the diary, causes from the window of profiled steps.

What costs time is measured on the timed steps (``results/diary.py``); rules, which read the window, say why and what to do.
Of what only a window shows (Python, launches, memory bandwidth) the size is the window's, and the verdict says so.

The parts of a timed step are a tree that adds up: mean time of all ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import PART_OF
from stepscope.diagnose.costs import SIZED, Causes, causes_of, costs_of
from stepscope.diagnose.narrator import slowed, worded
from stepscope.diagnose.rule import PARTS_OF_CLAIM, WORTH
from stepscope.diagnose.rules import claimed_part, kind_of
from stepscope.diagnose.why import why_of
from stepscope.records.finding import (
    ClockDrop,
    Diagnosis,
    Finding,
    JobChange,
    JobVerdict,
    OperatorExcess,
    Quiet,
    TimeCost,
    VerdictKind,
)
from stepscope.records.trace_summary import RankPass, TraceSummary
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
from stepscope.results.slow_ranks import Slow
from stepscope.stats.step_table import Numbers, tree_of
from stepscope.traces.slow_operators import slow_operators, slow_step_operators


def _marked(kind: VerdictKind, parts: Mapping[str, Numbers], causes: Causes) -> str | None:
    """Return the part that a verdict is about: where it is known whom ranks wait for, what communication itself takes is its
    transfer."""
    part = PART_OF.get(kind)
    if part == "data" and parts["data"].sum() < parts["before"].sum():
        return "before"
    return "transfer" if kind == "communication-bound" and causes.settled else part


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict, and the diagnosis without what all steps refute, with stakes of the diary where it has them."""

    verdict: JobVerdict
    diagnosis: Diagnosis

    def borne_out(self, summary: TraceSummary) -> TraceSummary:
        """The window without stragglers that the timed steps do not show: what it says of one is not what the job does."""
        report = summary.stragglers
        if report is None or not self.verdict.steps_timed:
            return summary
        late = _late(self.verdict.costs)
        kept = tuple(straggler for straggler in report.stragglers if straggler.rank in late)
        if len(kept) == len(report.stragglers):
            return summary
        who = "no other rank" if kept else "no rank"
        text = f"{who} is late in the {counted(self.verdict.steps_timed, 'timed step')}, whatever profiled ones show"
        return replace(summary, stragglers=replace(report, stragglers=kept, pattern="none", text=text))

    def evidence_of(self, evidence: Evidence) -> Evidence:
        """The evidence that was judged, with the windows of its profiled job borne out."""
        windows = [id(trace) for trace in windows_of(evidence, evidence.profiled[0])]
        return replace(
            evidence,
            traces=tuple(
                replace(trace, summary=self.borne_out(trace.summary)) if id(trace) in windows else trace
                for trace in evidence.traces
            ),
        )


def judge(evidence: Evidence, diagnosis: Diagnosis) -> Judged | None:
    """The verdict on the only profiled job of ``evidence``; None where there is none, or more than one, or nothing known."""
    if len(evidence.profiled) != 1:
        return None
    job = evidence.profiled[0]
    steps = job.steps
    if steps is None:
        ended = _without_steps(job)
        return None if ended is None else Judged(verdict=ended, diagnosis=diagnosis)
    window = next((trace.summary for trace in reversed(windows_of(evidence, job))), None)
    causes = causes_of(job, steps, diagnosis, window)
    verdict = verdict_on(steps, causes)
    sized = _sized(verdict, steps, causes) if causes.sized else diagnosis
    return Judged(verdict=replace(verdict, why=why_of(verdict, causes)), diagnosis=sized)


def verdict_on(steps: JobSteps, causes: Causes) -> JobVerdict:
    """The verdict on a table of steps: what takes its time, and which of the causes explains it."""
    job, diagnosis, late = causes.job, causes.diagnosis, causes.late
    failed = _END.get(job.end.kind) if job.end else None
    # How a job failed comes before what its steps cost; the tree still shows it.
    costs = [] if failed is not None or steps.steps < FEW_STEPS else costs_of(steps, causes)
    kind, ranks = _kind(steps, causes, costs)
    if failed and job.end:
        kind, ranks = failed, job.end.ranks
    timed = step_interval(steps)
    first = costs[0] if costs and costs[0].kind == kind else None
    verdict = JobVerdict(
        kind=kind,
        ranks=ranks,
        share=first.share if first else None,
        of=first.of if first else "step",
        stake_fraction=first.stake_fraction if first else None,
        confidence=_confidence(steps, kind),
        headline="",
        costs=tuple(costs),
        step_ns=timed.value,
        step_low_ns=timed.low,
        step_high_ns=timed.high,
        profiled_step_ns=job.profiled_step_ns,
        slowdown=causes.slowdown,
        slowed_apart=causes.apart,
        steps_timed=steps.steps,
        steps_made=steps.all_steps,
        steps_profiled=job.steps_profiled,
        ranks_seen=steps.ranks,
        world_size=steps.world_size,
        hosts=len(set(steps.hosts)),
        ended=job.end.kind if job.end else None,
        memory=job_memory(steps),
        change=(change := job_change(steps)),
        operators=() if causes.window is None else _operators(causes.window.ranks, costs, change),
        groups=group_waits(steps),
        clocks=_clocks(steps, costs, late, change),
    )
    parts = causes.facts.parts
    verdict = replace(verdict, tree=tree_of(steps, parts, marked=_marked(verdict.marked, parts, causes)))
    doubts = tuple(d for f in diagnosis.findings if costs and f.rule in costs[0].rules for d in f.doubts)
    if costs and costs[0].kind not in SIZED and doubts:
        verdict = replace(verdict, confidence=f"doubtful: {'; '.join(dict.fromkeys(doubts))}")
    return worded(verdict, steps, causes)


def _without_steps(job: ProfiledJob) -> JobVerdict | None:
    """Return the verdict on a job that ended before any step; None: it goes on, or its end says nothing."""
    if job.end is None or job.end.kind not in _END:
        return None
    return JobVerdict(
        kind=_END[job.end.kind],
        ranks=job.end.ranks,
        confidence="likely" if job.end.likely else "certain: the job's own end",
        headline=end_sentence(job.end),
        ranks_seen=len({diary.rank for diary in job.diaries}),
        world_size=job.end.world_size,
        ended=job.end.kind,
    )


def windows_of(evidence: Evidence, job: ProfiledJob) -> tuple[TraceEvidence, ...]:
    """The traced jobs that are windows of this one, in their order; the latest is the deep look at what a verdict names."""
    return tuple(trace for trace in evidence.traces if evidence.profiled_of(trace) is job)


def _operators(
    passes: Sequence[RankPass], costs: Sequence[TimeCost], change: JobChange | None
) -> tuple[OperatorExcess, ...]:
    """Name the operators that late ranks spend longer in; without late ranks, those of steps that are slow now and then."""
    late = _late(costs).union(change.ranks if change is not None and change.slower else ())
    if not late and any(cost.kind == "periodic-pause" for cost in costs):
        return slow_step_operators(passes)
    return slow_operators(passes, late)


def _clocks(
    steps: JobSteps, costs: Sequence[TimeCost], late: Sequence[Slow], change: JobChange | None
) -> tuple[ClockDrop, ...]:
    """Return the clock drops of ranks that are late, or became so; a clock is no cause of waiting for data."""
    loading = {steps.diaries[slow.rank].rank for slow in late if slow.rank is not None and slow.part == "data"}
    named = _late(costs) - loading
    drops = clocks_of_late(steps, named) if named else ()
    if change is not None and change.slower and change.part != "data":
        slowed = {diary.rank for diary in steps.diaries} if change.all_ranks else set(change.ranks)
        drops += clocks_of_change(steps, change.step, slowed) if slowed else ()
    return drops


def _late(costs: Iterable[TimeCost]) -> set[int]:
    return {rank for cost in costs if cost.kind == "straggler" for rank in cost.ranks}


def _kind(steps: JobSteps, causes: Causes, costs: Sequence[TimeCost]) -> tuple[VerdictKind, tuple[int, ...]]:
    """Return the verdict's kind and ranks."""
    if steps.independent or causes.findings("independent-processes"):
        return "independent-processes", ()
    if costs:
        return costs[0].kind, costs[0].ranks
    if steps.steps < FEW_STEPS:
        return "undecided", ()
    return "compute-bound" if causes.seen else "computation-or-python", ()


def _confidence(steps: JobSteps, kind: VerdictKind) -> str:
    if steps.steps < FEW_STEPS:
        return f"undecided: {steps.steps} steps are too few"
    if kind == "computation-or-python":
        return f"measured over {steps.steps} steps; without profiled ones computation and Python are one"
    return f"measured over {steps.steps} steps"


def _sized(verdict: JobVerdict, steps: JobSteps, causes: Causes) -> Diagnosis:
    """The findings of the window, as far as the timed steps bear them out, with the stakes of these.

    What the timed steps size is told by the verdict, and by findings that name its cause. A window whose sizes do not hold
    sizes nothing. Quiet says what was left out, with the timed figure.
    """
    by_kind = {cost.kind: cost for cost in verdict.costs}
    diagnosis = causes.diagnosis
    of_window = {doubt.why for finding in diagnosis.findings for doubt in finding.casts_doubt.values()}
    lost = causes.facts.lost

    def borne_out(finding: Finding) -> Finding | str:
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
                return f"in the window only, not in the {steps.steps} timed steps"
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

    outcomes = [(finding, borne_out(finding)) for finding in diagnosis.findings]
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
