"""The verdict on one's own job: sizes from all steps of the diary, causes from the window of profiled steps.

What costs time is measured on the timed steps (``results/diary.py``); rules, which read the window, say why and what to do.
Of what only a window shows (Python, launches, memory bandwidth) the size is the window's, and the verdict says so.

The parts of a timed step are a tree that adds up: mean time of all ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.narrator import KIND_OF_EVENT, half_width, slowed, worded
from stepscope.diagnose.rules import claimed_part, kind_of, names_cause
from stepscope.diagnose.step_tree import tree_of
from stepscope.diagnose.trace_facts import WORTH, exposed_transfer
from stepscope.diagnose.why import why_of
from stepscope.records.finding import (
    MOST_SLOWED,
    ClockDrop,
    Diagnosis,
    Finding,
    JobChange,
    JobVerdict,
    OperatorExcess,
    Quiet,
    TimeCost,
    VerdictKind,
    VerdictPart,
)
from stepscope.records.nouns import Estimate
from stepscope.records.parts import COMPUTATION
from stepscope.records.profile import PROFILED
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.diary import (
    FEW_STEPS,
    LEAST_PERIODS,
    JobSteps,
    between_steps,
    crowd,
    late_ranks,
    parts_of,
    paused_steps,
    pauses,
    saved_share,
    share,
    step_interval,
    window_slowdown,
)
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.group_waits import group_waits
from stepscope.results.hardware import clocks_of_change, clocks_of_late, device_busy
from stepscope.results.host_load import crowding_ns, loader_stake, taken_by_others
from stepscope.results.job_change import job_change
from stepscope.results.memory_growth import job_memory
from stepscope.results.profiled_job import ProfiledJob, end_sentence
from stepscope.results.slow_ranks import Slow
from stepscope.stats.step_table import Numbers
from stepscope.traces.slow_operators import slow_operators, slow_step_operators

_CAUSES: Mapping[VerdictKind, str] = {
    "input-bound": "data",
    "before-forward": "before",
    "inference": "inference",
    "communication-bound": "communication",
    "pipeline-bubble": "communication",
    "straggler": "waiting",
    "uneven-work": "waiting",
    "optimizer-bound": "optimizer",
    "compute-bound": "computation",
    "computation-or-python": "computation",
    "host-bound": "computation",
    "memory-bound": "computation",
}


def _marked(kind: VerdictKind, parts: Mapping[str, Numbers], late: Sequence[Slow]) -> str | None:
    """Return the part that a verdict is about: where it is known whom ranks wait for, what communication itself takes is its
    transfer."""
    part = _CAUSES.get(kind)
    if part == "data" and parts["data"].sum() < parts["before"].sum():
        return "before"
    return "transfer" if kind == "communication-bound" and _settled(late) else part


WORTH_TRANSFER = 0.25
"""For communication of which no rule names a cause: DDP always leaves its last bucket exposed."""

MOST_BY_OTHERS = 0.5
"""For the same where other processes use the processors: with one of two cores busy it took 0.24 to 0.36 of the steps of
clean jobs, and 0.58 where the job itself sent many small messages (2026-11)."""

WORTH_BEFORE = 0.2
"""For time before the forward pass that no loader explains: metrics of the step before lie there, too."""

IDLE = 0.7
"""Of the time before the forward pass, in which the thread computes nothing where it waits for input."""

DEVICE_COMPUTES = 0.9
"""Busy share of the devices, from which on it is not Python that they wait for."""

SURELY_FED = 0.5
"""Of either: an interval of the wait that begins below is that of a few single steps, and every step is said to wait."""

WORTH_LATE = 0.05
"""For a rank that the others wait for: it costs this on every other rank."""

MOST_STEPS = 0.7
"""Of the steps, in which a rank that is late by itself is late; by chance one of two is in half of them."""

SURELY_LATE = 0.075
"""Of the others' own time: a rank whose interval of the excess begins beyond it is late by itself, though other delays hide
that in some steps. Of clean ranks it began at 0.057 at most (60 runs, 2026-11)."""

WORTH_WALL = 0.05
"""Of the wall time, for what happens between steps."""

CONTENDED = 0.2
"""Share of the step in which a rank was ready to run and had no processor. Threads of gloo alone make up to 0.13 where there
are as many ranks as cores (15 clean jobs, 2 ranks on 2 quiet cores, 2026-11)."""

CROWDED = 0.1
"""The same where ranks have more threads than there are cores, so that some wait whenever all of them compute, and where
other processes are seen to use them."""

OPTIMIZER_HEAVY = 0.3

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

SIZED = frozenset({"input-bound", "straggler", "communication-bound", "optimizer-bound", "uneven-work"})
"""Kinds that the diary measures: what the window alone says of them is no finding of its own."""


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
        late = {rank for cost in self.verdict.costs if cost.kind == "straggler" for rank in cost.ranks}
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
    failed = None if job.end is None else _END.get(job.end.kind)
    if job.steps is None:
        return None if failed is None else Judged(verdict=_without_steps(job, failed), diagnosis=diagnosis)
    steps = job.steps
    window = next(reversed(windows_of(evidence, job)), None)
    late = late_ranks(steps)
    pipeline = _is_pipeline(job, diagnosis)
    slowdown, apart = _slowdown(steps)
    costs = _ordered(_costs(steps, job, window, diagnosis, late, pipeline=pipeline, slowdown=slowdown))
    if failed is not None or steps.steps < FEW_STEPS:
        costs = []  # how a job failed comes before what its steps cost; the tree still shows it
    kind, ranks = _kind(steps, diagnosis, costs, seen=window is not None or _device_computes(steps, job))
    if failed is not None and job.end is not None:
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
        slowdown=slowdown,
        slowed_apart=apart,
        steps_timed=steps.steps,
        steps_made=steps.all_steps,
        steps_profiled=job.steps_profiled,
        ranks_seen=steps.ranks,
        world_size=steps.world_size,
        hosts=len(set(steps.hosts)),
        ended=None if job.end is None else job.end.kind,
        memory=job_memory(steps),
        change=(change := job_change(steps)),
        operators=() if window is None else _operators(window.summary.ranks, costs, change),
        groups=group_waits(steps),
        clocks=_clocks(steps, costs, late, change),
    )
    parts = parts_of(steps)
    verdict = replace(verdict, tree=tree_of(steps, parts, marked=_marked(verdict.marked, parts, late)))
    doubts = tuple(d for f in diagnosis.findings if costs and f.rule in costs[0].rules for d in f.doubts)
    if costs and costs[0].kind not in SIZED and doubts:
        verdict = replace(verdict, confidence=f"doubtful: {'; '.join(dict.fromkeys(doubts))}")
    sized = _sized(diagnosis, verdict, steps, pipeline=pipeline) if _sizes_known(job, window) else diagnosis
    final = worded(verdict, job=job, steps=steps, late=late, diagnosis=diagnosis)
    summary = None if window is None else window.summary
    return Judged(
        verdict=replace(final, why=why_of(final, job=job, summary=summary, diagnosis=diagnosis)), diagnosis=sized
    )


def _slowdown(steps: JobSteps) -> tuple[float | None, float | None]:
    """Return (profiled / timed step, slowdown of the most slowed rank / that of the least); None: not known."""
    ratio, by_rank = window_slowdown(steps) or (None, {})
    return ratio, max(by_rank.values()) / min(by_rank.values()) if len(by_rank) > 1 else None


def _without_steps(job: ProfiledJob, kind: VerdictKind) -> JobVerdict:
    """Return the verdict on a job that ended before any step."""
    assert job.end is not None
    return JobVerdict(
        kind=kind,
        ranks=job.end.ranks,
        confidence="likely" if job.end.likely else "certain: the job's own end",
        headline=end_sentence(job.end),
        ranks_seen=len({diary.rank for diary in job.diaries}),
        world_size=job.end.world_size,
        ended=job.end.kind,
    )


def windows_of(evidence: Evidence, job: ProfiledJob) -> tuple[TraceEvidence, ...]:
    """The traced jobs that are windows of this one, in their order; the latest is the deep look at what a verdict names."""
    folder = job.folder.resolve()
    return tuple(trace for trace in evidence.traces if trace.job and trace.job.resolve() == folder)


def _operators(
    passes: Sequence[RankPass], costs: Sequence[TimeCost], change: JobChange | None
) -> tuple[OperatorExcess, ...]:
    """Name the operators that late ranks spend longer in; without late ranks, those of steps that are slow now and then."""
    late = {rank for cost in costs if cost.kind == "straggler" for rank in cost.ranks}
    late |= set(change.ranks) if change is not None and change.slower else set()
    if not late and any(cost.kind == "periodic-pause" for cost in costs):
        return slow_step_operators(passes)
    return slow_operators(passes, late)


def _clocks(
    steps: JobSteps, costs: Sequence[TimeCost], late: Sequence[Slow], change: JobChange | None
) -> tuple[ClockDrop, ...]:
    """Return the clock drops of ranks that are late, or became so; a clock is no cause of waiting for data."""
    loading = {steps.diaries[slow.rank].rank for slow in late if slow.rank is not None and slow.part == "data"}
    named = {rank for cost in costs if cost.kind == "straggler" for rank in cost.ranks} - loading
    drops = clocks_of_late(steps, named) if named else ()
    if change is not None and change.slower and change.part != "data":
        slowed = {diary.rank for diary in steps.diaries} if change.all_ranks else set(change.ranks)
        drops += clocks_of_change(steps, change.step, slowed) if slowed else ()
    return drops


def _sizes_known(job: ProfiledJob, window: TraceEvidence | None) -> bool:
    """Whether the parts of the diary are those of the step: on a GPU the host's clock shows launches, not the work."""
    assert job.steps is not None
    if any(diary.header.clock == "device" for diary in job.steps.diaries):
        return True
    if job.on_cpu is not None:
        return job.on_cpu
    return window is None or not any(p.budget and p.budget.source == "device" for p in window.summary.ranks)


def _is_pipeline(job: ProfiledJob, diagnosis: Diagnosis) -> bool:
    return bool(job.facts.get("pipeline")) or any(f.rule == "pipeline-bubble" for f in diagnosis.findings)


def _costs(
    steps: JobSteps,
    job: ProfiledJob,
    window: TraceEvidence | None,
    diagnosis: Diagnosis,
    late: Sequence[Slow],
    *,
    pipeline: bool,
    slowdown: float | None,
) -> Iterable[TimeCost]:
    """Yield everything that takes enough to be named; stakes are as they stand alone."""
    if _sizes_known(job, window):
        yield from _contended(steps)
        if pipeline:
            yield from _bubble(steps)
        else:
            yield from _late(steps, diagnosis, late, ahead=job.loads_ahead)
            yield from _communication(steps, job, window, diagnosis, late, slowdown=slowdown)
        fed = tuple(_input(steps, job))
        yield from fed
        yield from _inference(steps)
        updating = tuple(_optimizer(steps))
        yield from updating
        skip = SIZED | ({"pipeline-bubble"} if pipeline else set())
        tiny = () if window is None else tuple(_tiny_operators(steps, window.summary))
        yield from tiny
        if tiny:
            skip = skip | {"host-bound"}
        yield from _beyond_timed((*fed, *updating), diagnosis, steps, skip=skip, slowdown=slowdown)
    else:
        yield from _seen_in_window(diagnosis, steps, skip=frozenset(), slowdown=slowdown)
    yield from _between(steps)


def _beyond_timed(
    timed: Sequence[TimeCost],
    diagnosis: Diagnosis,
    steps: JobSteps,
    *,
    skip: frozenset[str] | set[str],
    slowdown: float | None,
) -> Iterable[TimeCost]:
    """Yield what the window shows, without what is mostly a part that the diary timed: Python that prepares batches, and
    kernels of the optimizer that move memory."""
    prepared = sum(cost.share.value for cost in timed if cost.rules == ("before",))
    updating = sum(cost.share.value for cost in timed if cost.kind == "optimizer-bound")
    timed_shares: dict[VerdictKind, float] = {"host-bound": prepared, "memory-bound": updating}
    for cost in _seen_in_window(diagnosis, steps, skip=skip, slowdown=slowdown):
        if cost.share.value - timed_shares.get(cost.kind, 0.0) >= WORTH:
            yield cost


EMPTY_NS = 2_000
"""Nanoseconds of computation for each operator that a step calls, below which they are launched rather than computed: a call
on one element takes 1.7 to 2.6 us (torch 2.13, CPU, 2026-11), and the operators inside of it count, too."""

LEAST_NS = 500
"""The same below which no operator ends: then the profiled steps called more than timed ones do."""


def _tiny_operators(steps: JobSteps, summary: TraceSummary) -> Iterable[TimeCost]:
    """Yield computation that so many operators share that none has time to compute. A count: the profiler adds none."""
    counts = [rank.step_operators for rank in summary.ranks if rank.step_operators]
    parts = parts_of(steps)
    computation = sum((parts[name] for name in COMPUTATION), np.zeros_like(steps.whole_ns))
    part = share(computation, steps.whole_ns)
    if not counts or part is None or part.value < WORTH:
        return
    each_ns = float(computation.mean()) / median(counts)
    if LEAST_NS <= each_ns < EMPTY_NS:
        yield TimeCost(kind="host-bound", share=part, rules=("operators",), event_ns=each_ns)


def _findings_of(diagnosis: Diagnosis, kind: VerdictKind) -> tuple[Finding, ...]:
    return tuple(f for f in diagnosis.findings if kind_of(f) == kind and f.severity != "info")


def _rules(diagnosis: Diagnosis, kind: VerdictKind) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.rule for f in _findings_of(diagnosis, kind)))


def _contended(steps: JobSteps) -> Iterable[TimeCost]:
    part = share(steps.delay_ns, steps.whole_ns)
    crowded = crowd(steps) is not None or taken_by_others(steps) > 0
    if part is not None and part.value >= (CROWDED if crowded else CONTENDED):
        yield TimeCost(kind="contended-machine", share=part, stake_fraction=part.value)


def _input(steps: JobSteps, job: ProfiledJob) -> Iterable[TimeCost]:
    """Yield waiting for data where every rank waits: its share is the ranks' mean, as in the tree; at stake is that of the
    rank which comes last, step by step. What one rank alone waits makes it late, and counts there; pauses and garbage
    collections before a forward pass prepare no batch."""
    usual = ~paused_steps(steps)
    now_and_then, ahead = _waits_now_and_then(steps), job.loads_ahead
    for name in ("before",) if now_and_then else ("data", "before"):
        every = np.nan_to_num(steps.parts_ns[name])
        if name == "before":
            every = np.maximum(every - steps.inside_ns, 0.0)
        if not _every_rank_waits(steps, name, ahead=ahead and name == "data"):
            continue
        last = np.nan_to_num(steps.own_ns).argmax(axis=0)
        kept = np.ones_like(usual) if name == "data" else usual
        part = share(every[last, np.arange(steps.steps)][kept], steps.step_ns[kept])
        limit = WORTH if name == "data" else WORTH_BEFORE
        if part is not None and part.value >= limit and (part.low is None or part.low >= SURELY_FED * limit):
            stake = part.value
            if name == "data" and job.loader_workers is not None:
                stake = loader_stake(steps, workers=job.loader_workers, share=stake)
            waits = name == "data" or _waits_before(steps)
            kind: VerdictKind = "input-bound" if waits else "before-forward"
            mean = share(steps.parts_ns[name], steps.whole_ns) or part
            yield TimeCost(kind=kind, share=mean, stake_fraction=stake, rules=(name,))
            return


def _waits_before(steps: JobSteps) -> bool:
    """Return whether the time before the forward pass is spent without computing: input that no loader reads."""
    idle = share(steps.idle_before_ns, steps.parts_ns["before"])
    return idle is not None and idle.value >= IDLE


def _inference(steps: JobSteps) -> Iterable[TimeCost]:
    """Yield passes without gradients in every step. Whether the algorithm can do with fewer is not known: no stake."""
    part = share(steps.parts_ns["inference"], steps.whole_ns)
    if part is not None and part.value >= WORTH:
        yield TimeCost(kind="inference", share=part)


def _waits_now_and_then(steps: JobSteps) -> bool:
    """Whether data are waited for in steps that come regularly, and hardly between them: that is a pause (``_between``)."""
    pause = pauses(steps)
    if pause is None or pause.period is None or pause.part != "data":
        return False
    usual = ~paused_steps(steps)
    between = share(steps.parts_ns["data"][:, usual], steps.whole_ns[:, usual])
    return between is None or between.value < WORTH


def _every_rank_waits(steps: JobSteps, name: str, *, ahead: bool) -> bool:
    """Whether the rank that waits least waits at least half as long as the one that waits most.

    ahead: workers load while a rank waits for another one, so of loaders that are equally slow one rank alone seems to wait:
    a rank that still waits for WORTH_LATE of the step is near its own loader's limit.
    """
    by_rank = np.nan_to_num(steps.parts_ns[name]).mean(axis=1)
    limit = 0.5 * by_rank.max()
    if ahead:
        limit = min(limit, WORTH_LATE * steps.whole_ns.mean())
    return bool(by_rank.min() >= limit)


def _by_itself(slow: Slow) -> bool:
    return slow.late_steps >= MOST_STEPS * slow.steps or (slow.low_ns or 0.0) >= SURELY_LATE * slow.others_ns


def _late(steps: JobSteps, diagnosis: Diagnosis, slow: Sequence[Slow], *, ahead: bool) -> Iterable[TimeCost]:
    chronic = [late_rank for late_rank in slow if late_rank.kind == "chronic" and _by_itself(late_rank)]
    shared = _every_rank_waits(steps, "data", ahead=ahead)
    if shared and (data := share(steps.parts_ns["data"], steps.whole_ns)) is not None and data.value >= WORTH:
        chronic = [late_rank for late_rank in chronic if late_rank.part != "data"]
        slow = chronic
    if chronic:
        saved = saved_share(steps, chronic)
        if saved >= WORTH_LATE:
            worst = chronic[0]
            ranks = tuple(steps.diaries[late_rank.rank].rank for late_rank in chronic if late_rank.rank is not None)
            scale = saved / max(worst.excess_ns, 1.0)
            low = None if worst.low_ns is None else worst.low_ns * scale
            high = None if low is None else 2 * saved - low
            yield TimeCost(
                kind="straggler",
                share=Estimate(value=saved, low=low, high=high),
                stake_fraction=saved,
                ranks=ranks,
                excess_ns=worst.excess_ns,
                rules=_rules(diagnosis, "straggler"),
            )
        return
    waiting = share(steps.waiting_ns, steps.whole_ns) if steps.ranks > 1 else None
    delay = float(np.nan_to_num(steps.delay_ns).sum() / steps.whole_ns.sum())
    if delay > 0.5 * CONTENDED:  # who has no processor is late by chance
        return
    if waiting is not None and waiting.value >= WORTH and any(late_rank.kind == "rotating" for late_rank in slow):
        yield TimeCost(kind="uneven-work", share=waiting, stake_fraction=waiting.value)


def _communication(
    steps: JobSteps,
    job: ProfiledJob,
    window: TraceEvidence | None,
    diagnosis: Diagnosis,
    late: Sequence[Slow],
    *,
    slowdown: float | None,
) -> Iterable[TimeCost]:
    """Yield exposed communication net of waiting for a late rank; the stake is what the window's cause can return of it."""
    if steps.world_size < 2 or not np.isfinite(steps.comm_ns).all():
        return
    taken = np.broadcast_to(steps.transfer_ns, steps.whole_ns.shape) if _settled(late) else steps.comm_ns
    part = share(taken, steps.whole_ns)
    causes = [f for f in _findings_of(diagnosis, "communication-bound") if names_cause(f)]
    # Where others use the processors, threads of the communication wait for one, and no clock tells that apart.
    unexplained = min(MOST_BY_OTHERS, WORTH_TRANSFER + taken_by_others(steps))
    if part is None or part.value < (WORTH if causes else unexplained):
        return
    cause = max(causes, key=lambda f: f.stake_fraction or 0.0, default=None)
    yield TimeCost(
        kind="communication-bound",
        share=part,
        stake_fraction=part.value
        if cause is None
        else _returned(cause, part.value, _exposed(window), slowdown, crowding=_crowding(steps, job)),
        rules=_rules(diagnosis, "communication-bound"),
        cause=None if cause is None else cause.rule,
    )


def _settled(late: Sequence[Slow]) -> bool:
    """Whether it is known whom the ranks wait for."""
    return any(slow.kind in ("chronic", "rotating") for slow in late)


def _crowding(steps: JobSteps, job: ProfiledJob) -> float:
    """Share of the step in which ranks wait for a core that threads of their communication have."""
    return crowding_ns(steps, on_cpu=bool(job.on_cpu)) / float(steps.whole_ns.mean())


def _returned(
    cause: Finding, part: float, of_window: float | None, slowdown: float | None, *, crowding: float
) -> float:
    """Return the share of a timed step that goes with a cause of its communication: of the part, and of the waits for cores
    that its threads have, what goes in the window, and of the host's own time beside it what is not the profiler's.

    of_window: exposed communication, of a profiled step. The profiler adds to all that the host does beside it, in
    proportion: of a share s of a profiled step that is r times as long as a timed one, and in which the host computes for
    the share H, s (r - (r - 1) / H) is left.
    """
    if cause.stake_fraction is None:
        return part
    within = max(0.0, cause.stake_fraction - cause.stake_on_host)
    gone = min(1.0, within / of_window) if of_window else 1.0
    ratio, computes = max(slowdown or 1.0, 1.0), max(1.0 - (of_window or 0.0), cause.stake_on_host)
    on_host = cause.stake_on_host * max(0.0, ratio - (ratio - 1) / computes) if computes else 0.0
    return min(1.0, gone * (part + crowding) + on_host)


def without_profiler(share: float, slowdown: float | None) -> float:
    """The host's share of a timed step, at least, of its share of a profiled one: all that the profiler adds is the host's.

    slowdown: profiled / timed step.
    """
    ratio = max(slowdown or 1.0, 1.0)
    return max(0.0, share * ratio - (ratio - 1))


def _exposed(window: TraceEvidence | None) -> float | None:
    """Return exposed transfer / window of the profiled steps, which stakes of its causes are parts of; waiting is included
    where it is not known apart."""
    if window is None:
        return None
    if transfer := exposed_transfer(window.summary):
        return transfer
    budgets = [p.budget.parts for p in window.summary.ranks if p.budget is not None]
    shares = [budget.exposed_comm_ns / budget.window_ns for budget in budgets if budget.window_ns]
    return median(shares) if shares else None


def _bubble(steps: JobSteps) -> Iterable[TimeCost]:
    part = share(steps.comm_ns, steps.whole_ns)
    if part is not None and part.value >= WORTH:
        yield TimeCost(kind="pipeline-bubble", share=part, stake_fraction=part.value)


def _optimizer(steps: JobSteps) -> Iterable[TimeCost]:
    part = share(steps.parts_ns["optimizer"], steps.whole_ns)
    if part is not None and part.value >= OPTIMIZER_HEAVY:
        yield TimeCost(kind="optimizer-bound", share=part, stake_fraction=part.value)


def _seen_in_window(
    diagnosis: Diagnosis, steps: JobSteps, *, skip: frozenset[str] | set[str], slowdown: float | None
) -> Iterable[TimeCost]:
    """Yield what rules find in the window, of kinds that the diary does not measure: the largest of each kind.

    slowdown: profiled / timed step. All that the profiler adds is the host's, so the host's time is at least that much of a
    timed step; of what devices and memory take in such a window nothing is known.
    """
    if (slowdown or 1.0) < 1 / MOST_SLOWED:
        return  # the profiled steps are other ones than most
    best: dict[VerdictKind, Finding] = {}
    for finding in diagnosis.findings:
        kind, stake = kind_of(finding), finding.stake_fraction or 0.0
        if kind is None or kind in skip or kind in ("compute-bound", "independent-processes"):
            continue
        largest = best.get(kind)
        if finding.severity != "info" and stake >= (WORTH if largest is None else largest.stake_fraction or 0.0):
            best[kind] = finding if largest is None or stake > (largest.stake_fraction or 0.0) else largest
    for kind, finding in best.items():
        value = finding.stake_fraction or 0.0
        if kind == "host-bound":
            value = without_profiler(max(0.0, value - _lost_in_window(steps)), slowdown)
        if value < WORTH or (kind != "host-bound" and (slowdown or 1.0) > MOST_SLOWED):
            continue
        part = Estimate(value=value)
        yield TimeCost(kind=kind, share=part, stake_fraction=value, ranks=finding.ranks, rules=(finding.rule,))


def _between(steps: JobSteps) -> Iterable[TimeCost]:
    for event in between_steps(steps):
        kind = KIND_OF_EVENT.get(event.kind)
        if kind is not None and event.share.value >= WORTH_WALL and event.count >= LEAST_PERIODS:
            yield TimeCost(
                kind=kind,
                share=event.share,
                of="wall",
                stake_fraction=None if kind == "inference" else event.share.value,
                ranks=event.ranks,
                period=event.period,
                event_ns=event.mean_ns,
            )
    pause = pauses(steps)
    if pause is not None and pause.share.value >= WORTH_WALL and pause.period is not None:
        in_data = _waits_now_and_then(steps)
        if pause.part == "data" and not in_data and _every_rank_waits(steps, "data", ahead=False):
            return  # part of what every step waits for data
        yield TimeCost(
            kind="input-bound" if in_data else "periodic-pause",
            rules=() if pause.part is None else (pause.part,),
            share=pause.share,
            stake_fraction=pause.share.value,
            ranks=() if pause.rank is None else (pause.rank,),
            period=pause.period,
            event_ns=pause.mean_ns,
        )


def _ordered(costs: Iterable[TimeCost]) -> list[TimeCost]:
    """Sort the contended machine first, since it qualifies the rest; then by share, without those that may as well be 0.
    Stakes together are at most the whole."""
    sure = [cost for cost in costs if (half := half_width(cost.share)) is None or half < cost.share.value]
    ranked = sorted(sure, key=lambda c: (c.kind != "contended-machine", -c.share.value))
    left = 1.0
    for at, cost in enumerate(ranked):
        if cost.stake_fraction is not None:
            stake = min(cost.stake_fraction, left)
            left -= stake
            ranked[at] = replace(cost, stake_fraction=stake)
    return ranked


def _device_computes(steps: JobSteps, job: ProfiledJob) -> bool:
    busy = None if job.on_cpu else device_busy(steps)
    return busy is not None and busy >= DEVICE_COMPUTES


def _kind(
    steps: JobSteps, diagnosis: Diagnosis, costs: Sequence[TimeCost], *, seen: bool
) -> tuple[VerdictKind, tuple[int, ...]]:
    """Return the verdict's kind and ranks. seen: whether computation is told from Python."""
    grave = [finding for finding in diagnosis.findings if finding.severity != "info"]
    if steps.independent or any(kind_of(f) == "independent-processes" for f in grave):
        return "independent-processes", ()
    if costs:
        return costs[0].kind, costs[0].ranks
    if steps.steps < FEW_STEPS:
        return "undecided", ()
    return "compute-bound" if seen else "computation-or-python", ()


def _confidence(steps: JobSteps, kind: VerdictKind) -> str:
    if steps.steps < FEW_STEPS:
        return f"undecided: {steps.steps} steps are too few"
    if kind == "computation-or-python":
        return f"measured over {steps.steps} steps; without profiled ones computation and Python are one"
    return f"measured over {steps.steps} steps"


_PART_OF_CLAIM: Mapping[str, tuple[str, ...]] = {
    "communication": ("communication",),
    "waiting": ("communication",),
    "computation": ("computation",),
    "idle": ("data", "computation", "other"),
    "copies": ("computation", "other"),
}
"""What a rule claims of a step, by its second word: the parts of the tree that hold it. On CPUs the host's own time lies in
the parts that it is spent in."""


def _sized(diagnosis: Diagnosis, verdict: JobVerdict, steps: JobSteps, *, pipeline: bool) -> Diagnosis:
    """The findings of the window, as far as the timed steps bear them out, with the stakes of these.

    What the timed steps size is told by the verdict, and by findings that name its cause. A window whose sizes do not hold
    sizes nothing. Quiet says what was left out, with the timed figure.
    """
    by_kind = {cost.kind: cost for cost in verdict.costs}
    measured = SIZED | ({"pipeline-bubble"} if pipeline else set())
    of_window = {doubt.why for finding in diagnosis.findings for doubt in finding.casts_doubt.values()}
    kept: list[Finding] = []
    quiet = list(diagnosis.quiet)
    lost = _lost_in_window(steps)

    def leave(finding: Finding, why: str) -> None:
        quiet.append(Quiet(rule=finding.rule, looked_at=f"{finding.title}: {why}"))

    for finding in diagnosis.findings:
        kind, limit = kind_of(finding), _timed_share(finding, verdict.tree)
        if finding.rule == "long-gap" and by_kind.keys() & _PAUSES:
            leave(finding, "the verdict names what happens then")
        elif finding.rule == "profiler-overhead":
            leave(finding, "sizes are those of timed steps")
        elif kind == "compute-bound" and finding.severity == "info":
            leave(finding, "the verdict has the size of timed steps")
        elif kind in measured and finding.severity != "info":
            cost = by_kind.get(kind)
            if cost is None:
                leave(finding, f"in the window only, not in the {steps.steps} timed steps")
            elif finding.cause or kind in ("straggler", "input-bound", "optimizer-bound"):
                kept.append(
                    _of_timed(finding, cost.stake_fraction, verdict, doubts=of_window, whole=finding.rule == cost.cause)
                )
            else:
                leave(finding, f"the verdict has its size: {format_percent(cost.share.value)} of the timed steps")
        elif finding.stake_fraction is None or finding.job is None:
            kept.append(finding)
        elif not verdict.window_sized:
            leave(finding, f"profiled steps are {slowed(verdict)}")
        elif claimed_part(finding) == "idle" and finding.stake_fraction - lost < WORTH:
            why = "events between steps, and waits for a processor, take"
            leave(finding, f"{why} {format_percent(lost)} of the profiled steps")
        elif limit is not None and limit < WORTH:
            leave(finding, f"that part takes {format_percent(limit)} of the timed steps")
        else:
            kept.append(_of_timed(finding, limit, verdict, doubts=()))
    return replace(diagnosis, findings=tuple(kept), quiet=tuple(sorted(quiet, key=lambda rule: rule.rule)))


def _timed_share(finding: Finding, tree: Sequence[VerdictPart]) -> float | None:
    """Share of the timed steps in the parts that the finding's rule claims; None: of the whole step, or not known."""
    parts = _PART_OF_CLAIM.get(claimed_part(finding), ())
    return sum(part.share for part in tree if part.key in parts) if parts else None


def _lost_in_window(steps: JobSteps) -> float:
    """Return the share of the profiled steps in evaluations, checkpoints and the like, and ready to run without a processor,
    mean of the ranks: a trace shows both as idle time, or as Python. 0 where no step is profiled."""
    shares = []
    for diary in steps.diaries:
        profiled = (diary.flags & PROFILED) != 0
        if profiled.any():
            whole = diary.whole_ns[profiled]
            lost = np.nan_to_num(diary.columns["outside_ns"])[profiled] + np.nan_to_num(diary.delay)[profiled] * whole
            shares.append(float(lost.sum() / whole.sum()))
    return min(1.0, float(np.mean(shares))) if shares else 0.0


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
