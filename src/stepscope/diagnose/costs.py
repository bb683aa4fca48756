"""What takes the time of timed steps: each cost with its size, of the table of all steps, and the cause that a window names.

Of what only a window shows (Python, launches, memory bandwidth) the size is the window's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepscope.core.dataclass import record
from stepscope.diagnose.bounds import PART_OF, bound, limit_of
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
    KIND_OF_EVENT,
    LEAST_PERIODS,
    Between,
    JobSteps,
    Pauses,
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
from stepscope.results.hardware import device_busy
from stepscope.results.host_load import crowding_ns, loader_stake, taken_by_others
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.slow_ranks import Slow
from stepscope.stats.step_table import Numbers

MOST_BY_OTHERS = 0.5
"""For communication of which no rule names a cause, where other processes use the processors: with one of two cores busy it
took 0.24 to 0.36 of the steps of clean jobs, and 0.58 where the job itself sent many small messages (2026-11)."""

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

DEVICE_COMPUTES = 0.9
"""Busy share of the devices, from which on it is not Python that they wait for."""

CONTENDED = 0.2
"""Share of the step in which a rank was ready to run and had no processor. Threads of gloo alone make up to 0.13 where there
are as many ranks as cores (15 clean jobs, 2 ranks on 2 quiet cores, 2026-11)."""

CROWDED = 0.1
"""The same where ranks have more threads than there are cores, so that some wait whenever all of them compute, and where
other processes are seen to use them."""

SIZED: frozenset[VerdictKind] = frozenset(
    {"input-bound", "straggler", "communication-bound", "optimizer-bound", "uneven-work", "pipeline-bubble"}
)
"""Kinds that the diary measures: what the window alone says of them is no finding of its own."""


@record
class Causes:
    """What may explain a table of steps, measured once: its parts, findings of profiled steps, what is known of the job.

    window: of profiled steps, the latest; None: there is none. seen: computation is told from Python. late: ranks that the
    others wait for. sized: whether the parts of the table are those of the step. pipeline: its stages wait for each other.
    slowdown: profiled / timed step; apart: that of the most slowed rank / of the least; exposed: communication that
    computation does not hide, of the window; None: not known.

    parts: of the tree, ns. of: part -> sum over ranks and steps / that of the steps; None: not known. Beside the parts of
    the table: delay, without a processor; idle, time before the forward pass in which nothing is computed. last: the same of
    the rank that comes last, step by step, of data and before where every rank waits; pauses and garbage collections before
    a forward pass prepare no batch. hidden: what of last's data worker processes can hide; None: nobody waits, or workers
    are not recorded. all_load: every rank waits for data. in_data: they are waited for in steps that come regularly, and
    hardly between: that is the pause. events: between steps. crowded: more threads than cores, or others: share of the cores
    that other processes use. crowding: of the step, waits for a core that threads of the communication have. lost: of
    profiled steps, evaluations, checkpoints and the like, and waits for a processor, mean of the ranks: a trace shows both
    as idle time, or as Python.
    """

    job: ProfiledJob
    diagnosis: Diagnosis
    window: TraceSummary | None
    seen: bool
    late: tuple[Slow, ...]
    sized: bool
    pipeline: bool
    slowdown: float | None
    apart: float | None
    exposed: float | None
    parts: Mapping[str, Numbers]
    of: Mapping[str, Estimate | None]
    last: Mapping[str, Estimate | None]
    hidden: float | None
    all_load: bool
    in_data: bool
    pause: Pauses | None
    events: tuple[Between, ...]
    crowded: bool
    others: float
    crowding: float
    lost: float

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
        return SIZED if self.pipeline else SIZED - {"pipeline-bubble"}


def causes_of(job: ProfiledJob, steps: JobSteps, diagnosis: Diagnosis, window: TraceSummary | None) -> Causes:
    """Measure what may explain the timed steps of a job."""
    parts, whole, usual, pause = steps.parts_ns, steps.whole_ns, ~paused_steps(steps), pauses(steps)
    leaves, others, full = parts_of(steps), taken_by_others(steps), crowd(steps) is not None
    taken = {
        **parts,
        "communication": steps.comm_ns,
        "transfer": np.broadcast_to(steps.transfer_ns, whole.shape),
        "waiting": steps.waiting_ns,
        "computation": np.asarray(sum(leaves[name] for name in COMPUTATION)),
        "delay": steps.delay_ns,
        "idle": steps.idle_before_ns,
    }
    rank = np.nan_to_num(steps.own_ns).argmax(axis=0), np.arange(steps.steps)
    last: dict[str, Estimate | None] = {}
    if _every_rank_waits(steps, "data", ahead=job.loads_ahead):
        last["data"] = share(np.nan_to_num(parts["data"])[rank], steps.step_ns)
    if _every_rank_waits(steps, "before"):
        before = np.maximum(np.nan_to_num(parts["before"]) - steps.inside_ns, 0.0)
        last["before"] = share(before[rank][usual], steps.step_ns[usual])
    data, workers = last.get("data"), job.loader_workers
    between = share(parts["data"][:, usual], whole[:, usual])
    regular = pause is not None and pause.period is not None and pause.part == "data"
    lost = []
    for diary in steps.diaries:
        if (profiled := (diary.flags & PROFILED) != 0).any():
            whole_ns = diary.whole_ns[profiled]
            aside = np.nan_to_num(diary.columns["outside_ns"])[profiled]
            aside = aside + np.nan_to_num(diary.delay)[profiled] * whole_ns
            lost.append(float(aside.sum() / whole_ns.sum()))
    budgets = [p.budget for p in (window.ranks if window else ()) if p.budget is not None]
    # On a GPU the host's clock shows launches, not the work.
    launched = job.on_cpu is None and any(budget.source == "device" for budget in budgets)
    exposed = None if window is None else exposed_transfer(window)
    if not exposed and budgets:  # where waiting is not known apart, it is included
        exposed = median(budget.parts.exposed_comm_fraction for budget in budgets)
    ratio, by_rank = window_slowdown(steps) or (None, {})
    return Causes(
        job=job,
        diagnosis=diagnosis,
        window=window,
        seen=window is not None or (not job.on_cpu and (device_busy(steps) or 0.0) >= DEVICE_COMPUTES),
        late=late_ranks(steps),
        sized=steps.clock == "device" or (job.on_cpu is not False and not launched),
        pipeline=bool(job.facts.get("pipeline")) or any(f.rule == "pipeline-bubble" for f in diagnosis.findings),
        slowdown=ratio,
        apart=max(by_rank.values()) / min(by_rank.values()) if len(by_rank) > 1 else None,
        exposed=exposed,
        parts=leaves,
        of={key: share(ns, whole) for key, ns in taken.items()},
        last=last,
        hidden=None if data is None or workers is None else loader_stake(steps, workers=workers, share=data.value),
        all_load=_every_rank_waits(steps, "data"),
        in_data=regular and not bound("input-bound", between, "diary"),
        pause=pause,
        events=between_steps(steps),
        crowded=full or others > 0,
        others=others,
        crowding=crowding_ns(steps, on_cpu=bool(job.on_cpu)) / float(whole.mean()),
        lost=min(1.0, float(np.mean(lost))) if lost else 0.0,
    )


def _every_rank_waits(steps: JobSteps, name: str, *, ahead: bool = False) -> bool:
    """Whether the rank that waits least waits at least half as long as the one that waits most.

    ahead: workers load while a rank waits for another one, so of loaders that are equally slow one rank alone seems to wait:
    a rank that still waits for WORTH_LATE of the step is near its own loader's limit.
    """
    by_rank = np.nan_to_num(steps.parts_ns[name]).mean(axis=1)
    limit = 0.5 * by_rank.max()
    if ahead:
        limit = min(limit, WORTH_LATE * steps.whole_ns.mean())
    return bool(by_rank.min() >= limit)


def costs_of(steps: JobSteps, causes: Causes) -> list[TimeCost]:
    """Return everything that takes enough to be named, the contended machine first, then by share; stakes together are at
    most the whole."""
    return _ordered_costs([*_step_costs(steps, causes), *_event_costs(causes)])


def _step_costs(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    """Yield what is a part of the steps; stakes are as they stand alone."""
    if not causes.sized:
        yield from _seen_in_window(causes, skip=frozenset())
        return
    part = causes.of["delay"]
    if part is not None and part.value >= (CROWDED if causes.crowded else CONTENDED):
        yield TimeCost(kind="contended-machine", share=part, stake_fraction=part.value)
    if causes.pipeline:
        yield from _whole_part_cost("pipeline-bubble", causes)
    else:
        yield from _late_rank_costs(steps, causes)
        yield from _communication_costs(steps, causes)
    timed = [
        *_input_costs(causes),
        *_whole_part_cost("inference", causes),
        *_whole_part_cost("optimizer-bound", causes),
    ]
    tiny = tuple(_tiny_operators(causes))
    yield from (*timed, *tiny)
    # Python that prepares batches, and kernels of the optimizer that move memory, are mostly parts that the diary timed.
    inside: dict[VerdictKind, float] = {
        "host-bound": sum(cost.share.value for cost in timed if cost.rules == ("before",)),
        "memory-bound": sum(cost.share.value for cost in timed if cost.kind == "optimizer-bound"),
    }
    skip = causes.measured.union(cost.kind for cost in tiny)
    for cost in _seen_in_window(causes, skip=skip):
        if cost.share.value - inside.get(cost.kind, 0.0) >= WORTH:
            yield cost


def _whole_part_cost(kind: VerdictKind, causes: Causes) -> Iterable[TimeCost]:
    """Yield a part that is all at stake; but whether an algorithm can do with fewer passes without gradients is unknown."""
    part = causes.of[PART_OF[kind]]
    if part is not None and bound(kind, part, "diary"):
        yield TimeCost(kind=kind, share=part, stake_fraction=None if kind == "inference" else part.value)


EMPTY_NS = 2_000
"""Nanoseconds of computation for each operator that a step calls, below which they are launched rather than computed: a call
on one element takes 1.7 to 2.6 us (torch 2.13, CPU, 2026-11), and the operators inside of it count, too."""

LEAST_NS = 500
"""The same below which no operator ends: then the profiled steps called more than timed ones do."""


def _tiny_operators(causes: Causes) -> Iterable[TimeCost]:
    """Yield computation that so many operators share that none has time to compute. A count: the profiler adds none."""
    window, part = causes.window, causes.of["computation"]
    counts = [rank.step_operators for rank in (window.ranks if window else ()) if rank.step_operators]
    if counts and part is not None and part.value >= WORTH:
        operator_ns = float(np.asarray(sum(causes.parts[name] for name in COMPUTATION)).mean()) / median(counts)
        if LEAST_NS <= operator_ns < EMPTY_NS:
            yield TimeCost(kind="host-bound", share=part, rules=("operators",), event_ns=operator_ns)


def _input_costs(causes: Causes) -> Iterable[TimeCost]:
    """Yield waiting for data where every rank waits: its share is the ranks' mean, as in the tree; at stake is that of the
    rank which comes last. What one rank alone waits makes it late, and counts there."""
    kinds: tuple[VerdictKind, ...] = ("input-bound", "before-forward")
    for kind in kinds[causes.in_data :]:
        name, limit = PART_OF[kind], limit_of(kind, "diary")
        part, mean, idle = causes.last.get(name), causes.of[name], causes.of["idle"]
        if part is None or part.value < limit or (part.low is not None and part.low < SURELY_FED * limit):
            continue
        mean = mean or part
        # Where nothing is computed before the forward pass, it is input that no loader reads.
        stake = part.value if name == "before" or causes.hidden is None else causes.hidden
        waits = name == "data" or (idle is not None and idle.value >= IDLE * mean.value)
        yield TimeCost(kind="input-bound" if waits else kind, share=mean, stake_fraction=stake, rules=(name,))
        return


def _late_rank_costs(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    """Yield what the others lose to ranks that are always late, else what ranks lose that are late by turns: one cost or
    none.

    A rank that is always late explains the waiting even where it costs too little to be named: then the work is not called
    uneven.
    """
    late = causes.late
    if "data" in causes.last and bound("input-bound", causes.of["data"], "diary"):
        late = tuple(late_rank for late_rank in late if late_rank.kind == "chronic" and late_rank.part != "data")
    chronic = [
        slow
        for slow in late
        if slow.kind == "chronic"
        and (slow.late_steps >= MOST_STEPS * slow.steps or (slow.low_ns or 0.0) >= SURELY_LATE * slow.others_ns)
    ]
    if chronic:
        saved = saved_share(steps, chronic)
        if saved >= WORTH_LATE:
            yield _straggler_cost(steps, causes, chronic, saved=saved)
        return
    delay = causes.of["delay"]
    if delay is not None and delay.value > 0.5 * CONTENDED:  # who has no processor is late by chance
        return
    if steps.ranks > 1 and any(late_rank.kind == "rotating" for late_rank in late):
        yield from _whole_part_cost("uneven-work", causes)


def _straggler_cost(steps: JobSteps, causes: Causes, chronic: Sequence[Slow], *, saved: float) -> TimeCost:
    """Return what ranks that are always late cost. saved: share of the step without them; its interval is the worst
    rank's."""
    worst = chronic[0]
    scale = saved / max(worst.excess_ns, 1.0)
    low = None if worst.low_ns is None else worst.low_ns * scale
    return TimeCost(
        kind="straggler",
        share=Estimate(value=saved, low=low, high=None if low is None else 2 * saved - low),
        stake_fraction=saved,
        ranks=tuple(steps.rank_numbers[late_rank.rank] for late_rank in chronic if late_rank.rank is not None),
        excess_ns=worst.excess_ns,
        rules=causes.rules("straggler"),
    )


def _communication_costs(steps: JobSteps, causes: Causes) -> Iterable[TimeCost]:
    """Yield exposed communication net of waiting for a late rank; the stake is what the window's cause can return of it."""
    if steps.world_size < 2 or not np.isfinite(steps.comm_ns).all():
        return
    part = causes.of["transfer" if causes.settled else "communication"]
    named = [f for f in causes.findings("communication-bound") if names_cause(f)]
    # Where others use the processors, threads of the communication wait for one, and no clock tells that apart.
    unexplained = min(MOST_BY_OTHERS, limit_of("communication-bound", "diary") + causes.others)
    if part is None or part.value < (WORTH if named else unexplained):
        return
    cause = max(named, key=lambda f: f.stake_fraction or 0.0, default=None)
    yield TimeCost(
        kind="communication-bound",
        share=part,
        stake_fraction=part.value if cause is None else _returned_share(cause, part.value, causes),
        rules=causes.rules("communication-bound"),
        cause=None if cause is None else cause.rule,
    )


def _returned_share(cause: Finding, part: float, causes: Causes) -> float:
    """Return the share of a timed step that goes with a cause of its communication: of the part, and of the waits for cores
    that its threads have, what goes in the window, and of the host's own time beside it what is not the profiler's.

    The profiler adds to all that the host does beside communication, in proportion: of a share s of a profiled step that is
    r times as long as a timed one, and in which the host computes for the share H, s (r - (r - 1) / H) is left.
    """
    if cause.stake_fraction is None:
        return part
    exposed, ratio = causes.exposed or 0.0, max(causes.slowdown or 1.0, 1.0)
    gone = min(1.0, max(0.0, cause.stake_fraction - cause.stake_on_host) / exposed) if exposed else 1.0
    computes = max(1.0 - exposed, cause.stake_on_host)
    on_host = cause.stake_on_host * max(0.0, ratio - (ratio - 1) / computes) if computes else 0.0
    return min(1.0, gone * (part + causes.crowding) + on_host)


def _seen_in_window(causes: Causes, *, skip: frozenset[VerdictKind]) -> Iterable[TimeCost]:
    """Yield what rules find in the window, of kinds that the diary does not measure: the largest of each kind.

    All that the profiler adds is the host's, so that of its share s of a profiled step that is r times as long as a timed
    one s r - (r - 1) is left at least; of what devices and memory take in such a window nothing is known.
    """
    slowdown = causes.slowdown or 1.0
    ratio = max(slowdown, 1.0)
    if slowdown < 1 / MOST_SLOWED:
        return  # the profiled steps are other ones than most
    seen = {*skip, "compute-bound", "independent-processes"}
    for finding in sorted(causes.diagnosis.findings, key=lambda finding: -(finding.stake_fraction or 0.0)):
        kind, value = kind_of(finding), finding.stake_fraction or 0.0
        if kind is None or kind in seen or finding.severity == "info" or value < WORTH:
            continue
        seen.add(kind)
        if kind == "host-bound":
            value = max(0.0, max(0.0, value - causes.lost) * ratio - (ratio - 1))
        elif slowdown > MOST_SLOWED:
            continue
        if value >= WORTH:
            part = Estimate(value=value)
            yield TimeCost(kind=kind, share=part, stake_fraction=value, ranks=finding.ranks, rules=(finding.rule,))


def _event_costs(causes: Causes) -> Iterable[TimeCost]:
    """Yield what happens between steps, a share of the wall time, and pauses that come regularly."""
    for event in causes.events:
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
    pause = causes.pause
    if pause is not None and pause.share.value >= WORTH_WALL and pause.period is not None:
        if pause.part == "data" and not causes.in_data and causes.all_load:
            return  # part of what every step waits for data
        yield TimeCost(
            kind="input-bound" if causes.in_data else "periodic-pause",
            rules=() if pause.part is None else (pause.part,),
            share=pause.share,
            stake_fraction=pause.share.value,
            ranks=() if pause.rank is None else (pause.rank,),
            period=pause.period,
            event_ns=pause.mean_ns,
        )


def _ordered_costs(costs: Iterable[TimeCost]) -> list[TimeCost]:
    """Sort the contended machine first, since it qualifies the rest; then by share, without those that may as well be 0.
    Stakes together are at most the whole."""
    sure = [cost for cost in costs if (half := cost.share.half_width) is None or half < cost.share.value]
    ranked = sorted(sure, key=lambda c: (c.kind != "contended-machine", -c.share.value))
    left = 1.0
    for at, cost in enumerate(ranked):
        if cost.stake_fraction is not None:
            stake = min(cost.stake_fraction, left)
            left -= stake
            ranked[at] = replace(cost, stake_fraction=stake)
    return ranked
