"""What takes the time of timed steps: each cost with its size, of the table of all steps, and the cause that a window names.

Of what only a window shows (Python, launches, memory bandwidth) the size is the window's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.narrator import KIND_OF_EVENT, half_width
from stepscope.diagnose.rule import WORTH
from stepscope.diagnose.rules import kind_of, names_cause
from stepscope.diagnose.trace_facts import exposed_transfer
from stepscope.records.finding import (
    MOST_SLOWED,
    Diagnosis,
    Finding,
    TimeCost,
    VerdictKind,
)
from stepscope.records.nouns import Estimate
from stepscope.records.parts import COMPUTATION
from stepscope.records.profile import PROFILED
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.diary import (
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
    window_slowdown,
)
from stepscope.results.host_load import crowding_ns, loader_stake, taken_by_others
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.slow_ranks import Slow

WORTH_TRANSFER = 0.25
"""For communication of which no rule names a cause: DDP always leaves its last bucket exposed."""

MOST_BY_OTHERS = 0.5
"""For the same where other processes use the processors: with one of two cores busy it took 0.24 to 0.36 of the steps of
clean jobs, and 0.58 where the job itself sent many small messages (2026-11)."""

WORTH_BEFORE = 0.2
"""For time before the forward pass that no loader explains: metrics of the step before lie there, too."""

IDLE = 0.7
"""Of the time before the forward pass, in which the thread computes nothing where it waits for input."""

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

SIZED: frozenset[VerdictKind] = frozenset(
    {"input-bound", "straggler", "communication-bound", "optimizer-bound", "uneven-work"}
)
"""Kinds that the diary measures: what the window alone says of them is no finding of its own."""


_OF_PIPELINES: tuple[VerdictKind, ...] = ("pipeline-bubble",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """What may explain a table of steps: findings of profiled steps, and what is known of the job.

    window: of profiled steps, the latest; None: there is none. late: ranks that the others wait for. sized: whether the
    parts of the table are those of the step. pipeline: its stages wait for each other. slowdown: profiled / timed step;
    apart: that of the most slowed rank / of the least; None: not known.
    """

    job: ProfiledJob
    diagnosis: Diagnosis
    window: TraceSummary | None
    late: tuple[Slow, ...]
    sized: bool
    pipeline: bool
    slowdown: float | None
    apart: float | None

    def findings(self, kind: VerdictKind) -> tuple[Finding, ...]:
        return tuple(f for f in self.diagnosis.findings if kind_of(f) == kind and f.severity != "info")

    def rules(self, kind: VerdictKind) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.rule for f in self.findings(kind)))

    @property
    def settled(self) -> bool:
        """Whether it is known whom the ranks wait for."""
        return any(slow.kind in ("chronic", "rotating") for slow in self.late)

    @property
    def measured(self) -> frozenset[VerdictKind]:
        """Kinds that the table measures: what the window alone says of them is no finding of its own."""
        return SIZED.union(_OF_PIPELINES) if self.pipeline else SIZED


def causes_of(job: ProfiledJob, steps: JobSteps, diagnosis: Diagnosis, window: TraceSummary | None) -> Causes:
    """Return what may explain the timed steps of a job."""
    ratio, by_rank = window_slowdown(steps) or (None, {})
    return Causes(
        job=job,
        diagnosis=diagnosis,
        window=window,
        late=late_ranks(steps),
        sized=_sizes_known(job, steps, window),
        pipeline=bool(job.facts.get("pipeline")) or any(f.rule == "pipeline-bubble" for f in diagnosis.findings),
        slowdown=ratio,
        apart=max(by_rank.values()) / min(by_rank.values()) if len(by_rank) > 1 else None,
    )


def _sizes_known(job: ProfiledJob, steps: JobSteps, window: TraceSummary | None) -> bool:
    """Whether the parts of the diary are those of the step: on a GPU the host's clock shows launches, not the work."""
    if steps.clock == "device":
        return True
    if job.on_cpu is not None:
        return job.on_cpu
    return window is None or not any(p.budget and p.budget.source == "device" for p in window.ranks)


def costs_of(steps: JobSteps, causes: Causes) -> list[TimeCost]:
    """Return everything that takes enough to be named, the contended machine first, then by share; stakes together are at
    most the whole."""
    return _ordered(_costs(steps, causes))


def _costs(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    """Yield them; stakes are as they stand alone."""
    if causes.sized:
        yield from _contended(steps)
        if causes.pipeline:
            yield from _bubble(steps)
        else:
            yield from _late(steps, causes)
            yield from _communication(steps, causes)
        fed = tuple(_input(steps, causes.job))
        yield from fed
        yield from _inference(steps)
        updating = tuple(_optimizer(steps))
        yield from updating
        tiny = () if causes.window is None else tuple(_tiny_operators(steps, causes.window))
        yield from tiny
        skip = causes.measured.union(cost.kind for cost in tiny)
        yield from _beyond_timed((*fed, *updating), steps, causes, skip=skip)
    else:
        yield from _seen_in_window(steps, causes, skip=frozenset())
    yield from _between(steps)


def _beyond_timed(
    timed: Sequence[TimeCost], steps: JobSteps, causes: Causes, *, skip: frozenset[VerdictKind]
) -> Iterable[TimeCost]:
    """Yield what the window shows, without what is mostly a part that the diary timed: Python that prepares batches, and
    kernels of the optimizer that move memory."""
    prepared = sum(cost.share.value for cost in timed if cost.rules == ("before",))
    updating = sum(cost.share.value for cost in timed if cost.kind == "optimizer-bound")
    timed_shares: dict[VerdictKind, float] = {"host-bound": prepared, "memory-bound": updating}
    for cost in _seen_in_window(steps, causes, skip=skip):
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


def _late(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    late: Sequence[Slow] = causes.late
    chronic = [late_rank for late_rank in late if late_rank.kind == "chronic" and _by_itself(late_rank)]
    shared = _every_rank_waits(steps, "data", ahead=causes.job.loads_ahead)
    if shared and (data := share(steps.parts_ns["data"], steps.whole_ns)) is not None and data.value >= WORTH:
        chronic = [late_rank for late_rank in chronic if late_rank.part != "data"]
        late = chronic
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
                rules=causes.rules("straggler"),
            )
        return
    waiting = share(steps.waiting_ns, steps.whole_ns) if steps.ranks > 1 else None
    delay = float(np.nan_to_num(steps.delay_ns).sum() / steps.whole_ns.sum())
    if delay > 0.5 * CONTENDED:  # who has no processor is late by chance
        return
    if waiting is not None and waiting.value >= WORTH and any(late_rank.kind == "rotating" for late_rank in late):
        yield TimeCost(kind="uneven-work", share=waiting, stake_fraction=waiting.value)


def _communication(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    """Yield exposed communication net of waiting for a late rank; the stake is what the window's cause can return of it."""
    if steps.world_size < 2 or not np.isfinite(steps.comm_ns).all():
        return
    taken = np.broadcast_to(steps.transfer_ns, steps.whole_ns.shape) if causes.settled else steps.comm_ns
    part = share(taken, steps.whole_ns)
    named = [f for f in causes.findings("communication-bound") if names_cause(f)]
    # Where others use the processors, threads of the communication wait for one, and no clock tells that apart.
    unexplained = min(MOST_BY_OTHERS, WORTH_TRANSFER + taken_by_others(steps))
    if part is None or part.value < (WORTH if named else unexplained):
        return
    exposed = None if causes.window is None else _exposed(causes.window)
    cause = max(named, key=lambda f: f.stake_fraction or 0.0, default=None)
    yield TimeCost(
        kind="communication-bound",
        share=part,
        stake_fraction=part.value
        if cause is None
        else _returned(cause, part.value, exposed, causes.slowdown, crowding=_crowding(steps, causes.job)),
        rules=causes.rules("communication-bound"),
        cause=None if cause is None else cause.rule,
    )


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


def _exposed(window: TraceSummary) -> float | None:
    """Return exposed transfer / window of the profiled steps, which stakes of its causes are parts of; waiting is included
    where it is not known apart."""
    if transfer := exposed_transfer(window):
        return transfer
    budgets = [p.budget.parts for p in window.ranks if p.budget is not None]
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


def _seen_in_window(steps: JobSteps, causes: Causes, *, skip: frozenset[VerdictKind]) -> Iterable[TimeCost]:
    """Yield what rules find in the window, of kinds that the diary does not measure: the largest of each kind.

    All that the profiler adds is the host's, so the host's time is at least that much of a
    timed step; of what devices and memory take in such a window nothing is known.
    """
    slowdown = causes.slowdown or 1.0
    if slowdown < 1 / MOST_SLOWED:
        return  # the profiled steps are other ones than most
    best: dict[VerdictKind, Finding] = {}
    for finding in causes.diagnosis.findings:
        kind, stake = kind_of(finding), finding.stake_fraction or 0.0
        if kind is None or kind in skip or kind in ("compute-bound", "independent-processes"):
            continue
        largest = best.get(kind)
        if finding.severity != "info" and stake >= (WORTH if largest is None else largest.stake_fraction or 0.0):
            best[kind] = finding if largest is None or stake > (largest.stake_fraction or 0.0) else largest
    for kind, finding in best.items():
        value = finding.stake_fraction or 0.0
        if kind == "host-bound":
            value = without_profiler(max(0.0, value - lost_in_window(steps)), slowdown)
        if value < WORTH or (kind != "host-bound" and slowdown > MOST_SLOWED):
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


def lost_in_window(steps: JobSteps) -> float:
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
