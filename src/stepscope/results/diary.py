"""Figures of a step diary: where the time of the unprofiled steps goes, on every rank, and what lies between steps.

Steps count from 1 on every rank alike: ranks train in lock step, so that step k of one rank is step k of all. Timed steps
are those that all ranks have, after warm-up, without the window of profiled steps, and, where they are few, without
steps in which something happened that is no part of a step: whoever waited for a checkpoint waited for no one's step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.core.words import grouped
from stepscope.records.nouns import Estimate, Measured
from stepscope.records.parts import LEAVES, RECORDED
from stepscope.records.profile import NO_TIMED_STEP, PROFILED, WINDOW, EventKind
from stepscope.results.slow_ranks import Slow, slow_ranks
from stepscope.results.trainings import ProcessSpan, trainings
from stepscope.stats.compare import bootstrap_median_interval, share_interval
from stepscope.stats.order import mad
from stepscope.stats.step_table import Numbers, StepTable
from stepscope.stats.warmup import warmup_end
from stepscope.store.diary import RankDiary
from stepscope.store.hardware import HardwareSamples

if TYPE_CHECKING:
    from stepscope.records.finding import VerdictKind
    from stepscope.results.window_effect import WindowEffect

EVENT_WORDS: dict[EventKind, str] = {
    "evaluation": "evaluation",
    "inference": "forward passes without gradients",
    "checkpoint": "checkpoint",
    "loader_start": "start of loader workers",
    "garbage_collection": "garbage collection",
    "compilation": "compilation",
    "trace_written": "trace written",
    "own_profiler": "the job's own profiler",
    "dropped": "not recorded",
    "off": "recorder off",
}
"""What each event of a diary is called, on terminal and page."""

KIND_OF_EVENT: Mapping[str, VerdictKind] = {
    "evaluation": "evaluation",
    "inference": "inference",
    "checkpoint": "checkpointing",
    "loader_start": "worker-start",
    "garbage_collection": "garbage-collection",
    "compilation": "compilation",
}
"""What a verdict calls those that take time."""

FEW_EVENT_STEPS = 0.5
"""Steps with an outside event are left out where they are fewer than this share of all."""

INTERRUPTION = 0.2
"""Share of the median step that a garbage collection or a compilation takes at least, so that its step is no usual one."""

MOST_AFTER = 10
"""Where more than this many times the steps before a window follow it, after it moved the level, the job is what they are.
"""

LEAST_PERIODS = 3
"""Fewest events with which a period can be told."""

MOSTLY = 0.7
"""Share of the distances that are one period, of pauses that are one kind."""

NEIGHBOURS, CHANCE = 2, 0.01
"""Steps that a pause lasts on at most; probability that pauses at random steps seem regular."""

WARM_UP_AT_MOST = 20
"""Most steps of warm-up: what takes longer to settle is how the job runs, and is told as a drift."""

LOOKED_AT = 400
"""Leading steps in which the end of warm-up is looked for."""

SHORT = 10
"""Below so many steps only the first is warm-up."""

PAUSE_MADS, PAUSE_FACTOR = 8.0, 2.0
"""A step further above the median than so many MAD, and longer than so many medians, holds a pause."""

LONG = 1.5
"""Number of median steps from which on the longest step is worth a line."""

MOST_PAUSES = 0.25
"""Most of the steps that can be pauses: more of them are how the job runs, such as two kinds of batches."""

MOST_RESAMPLED = 10_000
"""Steps whose medians are resampled; of more every n-th. A median over them is known to a thousandth of the spread."""

RESAMPLED = 2_000
"""Steps whose medians are resampled for the interval of the step, which is wider for it: with 10,000 it was nearly all that
a verdict costs."""

APART_STEPS, APART = 10, 0.1
"""Steps, and share of the time, by which ranks that wait for each other never come apart: a guess, 2026-11. Ahead is a rank
whose host does not wait for its device, by what the queue of launches holds; then it is ahead by no more."""

FEW_STEPS = 20
"""Timed steps, below which little is known of a training: of several another one is looked at, and no part of a step is
named as its cause."""

_SEED = 20_261_123


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSteps(StepTable):
    """The timed steps of a job with what only diaries tell; parts are those of ``RECORDED``.

    diaries: one a rank, its last process. processes: all of them; independent: several that trained at the same time as the
    same rank. trainings: one after the other, of which the steps are those of number ``training``. whole_ns: without outside
    events. own_clock: what own time rests on. warm_up: leading steps left out.
    ports: of each host, where they were sampled. window: what the latest window of profiled steps did to the steps after it,
    which are left out then, unless they are most of the job; None: nothing beyond noise.
    """

    diaries: tuple[RankDiary, ...]
    processes: tuple[RankDiary, ...]
    independent: bool
    own_clock: str
    warm_up: int
    all_steps: int
    first: int = 0
    ports: tuple[HardwareSamples, ...] = ()
    window: WindowEffect | None = None
    trainings: int = 1
    training: int = 1

    @property
    def world_size(self) -> int:
        return max(diary.header.world_size for diary in self.diaries)

    @property
    def together(self) -> bool:
        """Whether ranks end steps of one number at one time: none needs longer than another in each quarter of them (without
        the first step) until it is far behind. Else they count steps differently, or nobody waits for the others."""
        whole = np.stack([np.nan_to_num(diary.whole_ns[: self.all_steps - self.first])[1:] for diary in self.diaries])
        quarters = np.stack([quarter.sum(axis=1) for quarter in np.array_split(whole, 4, axis=1)])
        behind = quarters[:, (took := quarters.sum(axis=0)).argmax()] - quarters[:, took.argmin()]
        far = max(APART_STEPS * float(np.median(whole[took.argmax()])), APART * took.min()) if whole.size else 0.0
        return not (behind > 0).all() or bool(behind.sum() < far)

    @property
    def inside_ns(self) -> Numbers:
        """Time of garbage collections and compilations inside of the timed steps, ns [ranks, steps]."""
        return np.asarray(_inside_ns(self.diaries, self.first, self.all_steps)[:, self.numbers - 1 - self.first])

    @property
    def idle_before_ns(self) -> Numbers:
        """Time before the forward pass, ns [ranks, steps], in which a rank neither computes nor lacks a processor: all of
        the step's delay is taken off. NaN: not known."""
        columns = [diary.columns["before_cpu_ns"][self.numbers - 1 - self.first] for diary in self.diaries]
        ahead = self.parts_ns["before"] + np.nan_to_num(self.parts_ns["inference"])
        return np.asarray(np.maximum(ahead - np.stack(columns) - np.nan_to_num(self.delay_ns), 0.0))


def job_steps(diaries: Sequence[RankDiary], ports: tuple[HardwareSamples, ...] = ()) -> JobSteps | None:
    """The timed steps of a job; None where no diary holds a step."""
    stepped = [diary for diary in diaries if diary.steps]
    if not stepped:
        return None
    independent = any(overlap(same_rank) for same_rank in grouped(stepped, lambda diary: diary.rank).values())
    every = [] if independent else trainings(stepped, span)
    training = _chosen_training(every)
    if len(every) > 1:
        stepped = [diary for attempt in every[training] for diary in attempt]
    by_rank = grouped(stepped, lambda diary: diary.rank)
    chosen = tuple(
        max(same_rank, key=lambda d: (d.header.restart, d.header.start_unix_ns)) for same_rank in by_rank.values()
    )
    end = min(diary.first + diary.steps for diary in chosen)
    first = max(0, *(diary.first for diary in chosen))
    if first:
        chosen = tuple(diary.between(first, diary.first + diary.steps) for diary in chosen)
    count = end - first
    flags = np.stack([diary.flags[:count] for diary in chosen])
    outside = np.stack([diary.columns["outside_ns"][:count] for diary in chosen])
    net = np.stack([diary.net_ns[:count] for diary in chosen])
    kept = np.asarray(((flags & NO_TIMED_STEP) == 0).all(axis=0))
    eventful = np.asarray((np.nan_to_num(outside) > 0).any(axis=0)) | _interrupted_steps(chosen, first, net)
    if eventful[kept].mean() < FEW_EVENT_STEPS if kept.any() else False:
        kept &= ~eventful
    warm_up = 0 if first else warm_up_steps(net.max(axis=0), kept)
    kept[:warm_up] = False
    effect = _window_effect(net.max(axis=0), kept, first, latest_window(flags))
    if effect is not None:
        before = kept & (np.arange(count) + first + 1 < effect.first)
        if kept.sum() <= (1 + MOST_AFTER) * before.sum():
            kept = before
    if not kept.any():  # a job of very few steps: the first, or profiled ones, are all there is
        kept = np.ones(count, dtype=bool)
    at = np.flatnonzero(kept).astype(np.int64)
    whole, (parts, cpu, delay) = net[:, at], _recorded_columns(chosen, at)
    comm, own, clock = _comm_and_own_ns(whole, parts, cpu, delay, alone=max(d.header.world_size for d in chosen) == 1)
    numbers = at + first + 1
    return JobSteps(
        source="diary",
        clock="device" if any(diary.header.clock == "device" for diary in chosen) else "host",
        hosts=tuple(diary.header.host for diary in chosen),
        rank_numbers=tuple(diary.rank for diary in chosen),
        rounds=np.zeros_like(numbers),
        outside_ns=_outside_ns(chosen, count),
        diaries=chosen,
        processes=tuple(diaries),
        independent=independent,
        numbers=numbers,
        whole_ns=whole,
        parts_ns=parts,
        delay_ns=delay,
        comm_ns=comm,
        own_ns=own,
        own_clock=clock,
        warm_up=first + warm_up,
        all_steps=end,
        first=first,
        ports=ports,
        window=effect,
        trainings=max(len(every), 1),
        training=training + 1,
    )


def _outside_ns(diaries: Sequence[RankDiary], steps: int) -> float | None:
    """Return the mean ns between two steps, of all after the first; None where there is one step."""
    between = [np.nan_to_num(diary.columns["outside_ns"][1:steps]) for diary in diaries]
    return float(np.mean(between)) if steps > 1 else None


def _window_effect(
    step_ns: Numbers, kept: NDArray[np.bool_], first: int, window: tuple[int, int] | None
) -> WindowEffect | None:
    """Return what the window did to the steps after it; step_ns: [steps], of all steps; window: its columns."""
    if window is None:
        return None
    from stepscope.results.window_effect import window_effect  # of jobs with a window alone

    timed = np.flatnonzero(kept)
    return window_effect(step_ns[timed], timed + first + 1, first + window[0] + 1, first + window[1])


def span(diary: RankDiary) -> ProcessSpan:
    """Return the span of one process, as far as its steps were read."""
    start_ns = diary.header.start_unix_ns
    return ProcessSpan(
        rank=diary.rank, restart=diary.header.restart, start_ns=start_ns, end_ns=start_ns + _lasted_ns(diary)
    )


def _chosen_training(every: Sequence[Sequence[Sequence[RankDiary]]]) -> int:
    """Return the number of the training that is looked at: the last, unless it has too few steps and another has more."""
    made = [max((diary.made for diary in training[-1]), default=0) for training in every]
    if not made or made[-1] >= FEW_STEPS:
        return max(len(made) - 1, 0)
    return max(range(len(made)), key=lambda at: (made[at], at))


def _interrupted_steps(diaries: Sequence[RankDiary], first: int, net_ns: Numbers) -> NDArray[np.bool_]:
    """Return whether a known event inside of each step took a good part of a usual one, on any rank [steps]."""
    taken = _inside_ns(diaries, first, first + net_ns.shape[1]).sum(axis=0)
    return np.asarray(taken > INTERRUPTION * float(np.median(net_ns)))


def _inside_ns(diaries: Sequence[RankDiary], first: int, end: int) -> Numbers:
    """Return what known events inside of each step took, ns [ranks, steps]."""
    taken = np.zeros((len(diaries), end - first))
    for rank_ns, diary in zip(taken, diaries, strict=True):
        for event in diary.events:
            if event.inside and first < event.step <= end:
                rank_ns[event.step - 1 - first] += event.ns
    return taken


def overlap(same_rank: Sequence[RankDiary]) -> bool:
    """Whether two processes of one rank trained at the same time."""
    spans = sorted((d.header.start_unix_ns, d.header.start_unix_ns + _lasted_ns(d)) for d in same_rank)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def _lasted_ns(diary: RankDiary) -> float:
    """Return the ns from the first step to the last one; of a diary of which only the last steps were read, what is sure of
    it."""
    return float(np.nansum(diary.whole_ns)) * (diary.made / max(diary.steps, 1) / 2 if diary.first else 1.0)


def _recorded_columns(
    diaries: Sequence[RankDiary], at: NDArray[np.int64]
) -> tuple[dict[str, Numbers], Numbers, Numbers]:
    """Return what these columns hold, ns [ranks, steps]: parts by key, CPU time, delay."""
    parts = {key: np.stack([d.columns[f"{name}_ns"][at] for d in diaries]) for name, key in RECORDED.items()}
    cpu = np.stack([d.columns["cpu_ns"][at] for d in diaries])
    return parts, cpu, np.stack([d.delay[at] * d.whole_ns[at] for d in diaries])


def warm_up_steps(step_ns: Numbers, kept: NDArray[np.bool_]) -> int:
    """Return how many leading steps to leave out, counted in all steps."""
    places = np.flatnonzero(kept)
    if places.size < SHORT:
        return 1 if places.size > 1 and places[0] == 0 else 0
    end = warmup_end(step_ns[places[:LOOKED_AT]])
    ahead = min(places.size // 4, WARM_UP_AT_MOST, places.size // 2 if end is None else end)
    return int(places[ahead])


def _comm_and_own_ns(
    whole: Numbers, parts: Mapping[str, Numbers], cpu: Numbers, delay: Numbers, *, alone: bool
) -> tuple[Numbers, Numbers, str]:
    """Return exposed communication and own time, ns [ranks, steps], and what the own time rests on.

    Where the host saw its waits for communication, own time is the rest of the step, without the run queue's delay; else it
    is CPU time and waiting for data, and what is left of the step is communication.
    """
    comm = parts["communication"]
    late = np.nan_to_num(delay)
    if alone:
        return np.zeros_like(whole), whole - late, "the wall clock"
    if np.isfinite(comm).mean() > 0.5:
        seen = np.nan_to_num(comm)
        return seen, np.maximum(whole - seen - late, 0.0), "waits for communication"
    if np.isfinite(cpu).all():
        own = np.minimum(cpu + np.nan_to_num(parts["data"]), whole)
        return np.maximum(whole - own - late, 0.0), own, "CPU time of the training thread"
    return np.full_like(whole, np.nan), np.full_like(whole, np.nan), "unknown"


def window_slowdown(steps: JobSteps) -> tuple[float, Mapping[int, float]] | None:
    """Return how many times as long as a timed step one of the latest window takes: (the slowest rank's step, each rank's
    own time).

    Ratio of medians. By rank: of the ranks that were profiled; empty where own times are not known. None where no step was
    profiled, or no other timed.
    """
    count = steps.all_steps - steps.first
    flags = np.stack([diary.flags[:count] for diary in steps.diaries])
    window = latest_window(flags)
    timed = steps.numbers - 1 - steps.first
    if window is None or ((flags[:, timed] & PROFILED) != 0).any():
        return None
    profiled = np.asarray((flags & PROFILED) != 0)
    profiled[:, : window[0]] = False
    at = np.flatnonzero(profiled.any(axis=0))
    net = np.stack([diary.net_ns[:count] for diary in steps.diaries])[:, at]
    usual = float(np.median(steps.step_ns))
    if not usual:
        return None
    parts, cpu, delay = _recorded_columns(steps.diaries, np.concatenate([timed, at]))
    own = _comm_and_own_ns(np.hstack([steps.whole_ns, net]), parts, cpu, delay, alone=steps.world_size == 1)[1]
    own = own - np.nan_to_num(parts["data"])  # a loader is late by chance, whoever profiles
    before, inside = np.median(own[:, : timed.size], axis=1), own[:, timed.size :]
    by_rank = {
        diary.rank: float(np.median(own_ns[there]) / usually)
        for diary, own_ns, there, usually in zip(steps.diaries, inside, profiled[:, at], before, strict=True)
        if there.any() and usually > 0 and np.isfinite(own_ns[there]).all()
    }
    # A rank that is seen only waiting in its profiled steps has no own time to compare.
    return float(np.median(net.max(axis=0))) / usual, {rank: ratio for rank, ratio in by_rank.items() if ratio > 0}


def latest_window(flags: NDArray[np.uint8]) -> tuple[int, int] | None:
    """Return the columns (first, end) of ``flags`` [ranks, steps] that are the latest window, its warm-up and the writing of
    its trace included; None where no step was profiled."""
    inside = np.flatnonzero((flags & (PROFILED | WINDOW)).any(axis=0))
    if not (flags & PROFILED).any():
        return None
    begins = np.flatnonzero(np.diff(inside) > 1)
    spans = np.split(inside, begins + 1)
    last = next(window for window in reversed(spans) if (flags[:, window] & PROFILED).any())
    return int(last[0]), int(last[-1]) + 1


def share(part_ns: Numbers, whole_ns: Numbers, *, block: int | None = None) -> Estimate | None:
    """Return the sum of the parts / the sum of the wholes over steps (and ranks), with its block-bootstrap interval; None:
    not known.

    block: steps that belong together, such as a period.
    """
    part, whole = (np.atleast_2d(ns) for ns in (part_ns, whole_ns))
    if not np.isfinite(part).any():
        return None
    top, bottom = np.nan_to_num(part).mean(axis=0), np.broadcast_to(whole, part.shape).mean(axis=0)
    low, high = share_interval(top, bottom, rng=np.random.default_rng(_SEED), block=block) or (None, None)
    return Estimate(value=float(top.sum() / bottom.sum()), low=low, high=high)


def step_interval(steps: JobSteps) -> Measured:
    """Median ns of the slowest rank's step, with a block bootstrap's interval."""
    ends = bootstrap_median_interval(steps.step_ns[:: _step_stride(steps, RESAMPLED)], rng=np.random.default_rng(_SEED))
    return Measured.between(float(np.median(steps.step_ns)), ends, n=steps.steps)


def _step_stride(steps: JobSteps, most: int = MOST_RESAMPLED) -> int:
    """Return n such that every n-th step is looked at, where so many are enough."""
    return max(1, steps.steps // most)


def parts_of(steps: JobSteps) -> dict[str, Numbers]:
    """Return ns [ranks, steps] for each key of ``LEAVES``; together they are the step. What was not seen is 0: its time
    counts as other."""
    whole = steps.whole_ns
    named = {key: np.nan_to_num(steps.parts_ns[key]) for key in RECORDED.values() if key in LEAVES}
    comm = np.nan_to_num(steps.comm_ns)
    if steps.own_clock.startswith("CPU"):  # waits that Python did not see lie inside forward and backward
        seen = np.minimum(comm, named["forward"] + named["backward"])
        both = np.maximum(named["forward"] + named["backward"], 1.0)
        for name in ("forward", "backward"):
            named[name] = named[name] - seen * named[name] / both
    transfer = np.broadcast_to(np.nan_to_num(steps.transfer_ns), whole.shape)
    other = np.maximum(whole - sum(named.values(), comm), 0.0)
    return {**named, "transfer": transfer, "waiting": comm - transfer, "other": other}


@record
class Crowd:
    """Ranks of a host with more threads than it has cores."""

    ranks: int
    threads: int
    cores: int


@lru_cache(maxsize=2)
def crowd(steps: JobSteps) -> Crowd | None:
    """Return the crowd of the host with most threads a core; None where no host has more threads than cores, or it is not
    recorded.

    threads: of one operator, on all ranks of the host together.
    """
    crowds = []
    for ranks in grouped(steps.diaries, lambda diary: diary.header.host).values():
        cores = min((d.header.cores for d in ranks if d.header.cores), default=0)
        threads = sum(d.header.threads or 1 for d in ranks)
        if 0 < cores < threads:
            crowds.append(Crowd(ranks=len(ranks), threads=threads, cores=cores))
    return max(crowds, key=lambda host: host.threads / host.cores, default=None)


def late_ranks(steps: JobSteps) -> tuple[Slow, ...]:
    """Return the ranks that the others wait for, as ``slow_ranks`` of a cell does; empty where own times are unknown or
    ranks run apart."""
    if steps.ranks < 2 or not np.isfinite(steps.own_ns).all() or not steps.together:
        return ()
    return slow_ranks(steps.at(slice(None, None, _step_stride(steps))))


def waited_for(steps: JobSteps) -> frozenset[int]:
    """Return the places, among the ranks, of those that the others wait for in most steps."""
    return frozenset(slow.rank for slow in late_ranks(steps) if slow.kind == "chronic" and slow.rank is not None)


def saved_share(steps: JobSteps, late: Iterable[Slow]) -> float:
    """Return the share of the step that is saved if these ranks take no longer than the others: each step is as long as its
    last rank, less what that is later than the next once the excess is off."""
    own = steps.own_ns.copy()
    for slow in late:
        if slow.rank is not None:
            own[slow.rank] = own[slow.rank] - slow.excess_ns
    saved = steps.own_ns.max(axis=0) - own.max(axis=0)
    return float(np.clip(saved, 0.0, None).sum() / steps.step_ns.sum())


@record
class Between:
    """Events of one kind. share: of the wall time from the end of warm-up on without profiled steps, of the rank that they
    cost most.

    ranks: on which they happen; count: of one rank; mean_ns: of one event, with what the passes after it take longer;
    period: steps from one to the next, None where they have none. inside: part of steps. what: the calls.
    """

    kind: EventKind
    what: str
    share: Estimate
    ranks: tuple[int, ...]
    count: int
    mean_ns: float
    period: int | None
    inside: bool


@lru_cache(maxsize=2)
def between_steps(steps: JobSteps) -> tuple[Between, ...]:
    """Return what happens outside of steps, or inside some of them, by kind, the costliest first."""
    by_kind: dict[EventKind, dict[int, list[tuple[int, float, str, bool]]]] = defaultdict(lambda: defaultdict(list))
    for diary in steps.diaries:
        for event in diary.events:
            if steps.warm_up < event.step <= steps.all_steps and event.kind not in _NO_COST:
                by_kind[event.kind][diary.rank].append((event.step, float(event.ns), event.what, event.inside))
    kinds = []
    for kind, by_rank in by_kind.items():
        costs = {rank: sum(ns for _, ns, _, _ in events) for rank, events in by_rank.items()}
        rank = max(costs, key=lambda candidate: costs[candidate])
        events = by_rank[rank]
        diary = next(candidate for candidate in steps.diaries if candidate.rank == rank)
        seen = slice(steps.warm_up - steps.first, steps.all_steps - steps.first)
        wall, alone = diary.whole_ns[seen], diary.timed[seen].copy()
        taken = np.zeros_like(wall)
        for step, ns, _, _ in events:
            taken[step - steps.warm_up - 1] += ns
        taken *= 1 + _slower_after_share(
            steps, diary, {step: ns * inside for step, ns, _, inside in events}, costs[rank]
        )
        costly = [candidate for candidate in costs if costs[candidate] >= 0.5 * costs[rank]]
        every = period([step for step, _, _, _ in events])
        if every is not None:  # in whole periods
            numbers = [step for step, _, _, _ in events]
            within = np.arange(wall.size) + steps.warm_up + 1
            alone &= (within > min(numbers)) & (within <= max(numbers))
        if not taken[alone].any():  # all of them lie in the window
            alone = np.ones_like(alone)
        part = share(taken[alone], wall[alone], block=every)
        assert part is not None
        kinds.append(
            Between(
                kind=kind,
                what=Counter(what for _, _, what, _ in events).most_common(1)[0][0],
                share=part,
                ranks=tuple(sorted(costly)),
                count=len(events),
                mean_ns=float(taken.sum()) / len(events),
                period=every,
                inside=all(inside for _, _, _, inside in events),
            )
        )
    return tuple(sorted(kinds, key=lambda between: -between.share.value))


AFTER_STEPS = 2
"""The step that an event lies in or before, and the next: what it has pushed out of the caches is loaded again there."""

MOST_AFTERMATH = 0.25
"""Largest aftermath as a share of its events: beyond it, what else happens in the same steps would be counted, too. Passes
after an evaluation, a checkpoint, a collection or the start of workers took 0.1 to 0.4 of it longer (own jobs, 2 CPU cores,
2026-11)."""


def _slower_after_share(steps: JobSteps, diary: RankDiary, inside_ns: Mapping[int, float], cost_ns: float) -> float:
    """Return what forward, backward and optimizer take longer in the steps at and after events, as a share of what the
    events take together.

    0 where that is no more than chance. inside_ns: number of the step -> of its time, the event's. cost_ns: of all events.
    """
    passes = sum(np.nan_to_num(diary.columns[f"{name}_ns"]) for name in ("forward", "backward", "optimizer"))
    passes = np.asarray(passes, dtype=float)
    timed, near = diary.timed.copy(), np.zeros_like(diary.timed)
    timed[: steps.warm_up - steps.first] = False
    own_ns = np.zeros_like(passes)
    for number, ns in inside_ns.items():
        column = number - 1 - steps.first
        near[column : column + AFTER_STEPS] = True
        own_ns[column] = ns
    after, usual = timed & near, timed & ~near
    if usual.sum() < FEW_STEPS or not after.any():
        return 0.0
    longer = (passes - own_ns)[after] - passes[usual].mean()
    chance = 3 * passes[usual].std() * np.sqrt(after.sum())
    return min(MOST_AFTERMATH, float(longer.sum()) / cost_ns) if longer.sum() > chance and cost_ns else 0.0


_NO_COST = ("trace_written", "own_profiler", "dropped", "off")


def period(numbers: Sequence[int]) -> int | None:
    """Return the steps from one event to the next, where three or more come regularly: most distances are the same."""
    distances = np.diff(np.unique(numbers))
    if distances.size < LEAST_PERIODS - 1:
        return None
    middle = int(np.median(distances))
    return middle if (np.abs(distances - middle) <= max(1, 0.1 * middle)).mean() >= MOSTLY else None


def beyond_chance(numbers: NDArray[np.int64], among: int) -> int | None:
    """Return the ``period`` of events at these of ``among`` steps, where events at random steps are so regular in less than
    one of 100 jobs. Steps beside each other are one event: a machine that others use is busy for several at a time."""
    begins = numbers[np.r_[True, np.diff(numbers) > NEIGHBOURS]] if numbers.size else numbers
    every = period(begins.tolist())
    if every is None:
        return None
    distances, reach = np.diff(begins), max(1.0, 0.1 * every)
    rate = begins.size / among
    near = [n for n in range(1, among) if abs(n - every) <= reach]
    chance = sum(rate * (1 - rate) ** (n - 1) for n in near)
    hits, trials = int((np.abs(distances - every) <= reach).sum()), distances.size - 1
    # One distance is the period itself, and any of them may be taken for it.
    tail = sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(max(hits - 1, 0), trials + 1))
    return every if tail * distances.size < CHANCE else None


@record
class Pauses:
    """Steps that take far longer than the others and hold no event that the hook knows. rank: whose own time they are.
    period: None where they do not come regularly beyond chance, last differently long, or lacked a processor.
    part: of those that are recorded, the one that is longer then; None: no part holds ``MOSTLY`` of it.
    """

    share: Estimate
    mean_ns: float
    period: int | None
    rank: int | None
    part: str | None


@lru_cache(maxsize=2)
def paused_steps(steps: JobSteps) -> NDArray[np.bool_]:
    """Return which steps hold such a pause [steps]; none where they are too few, or too many, to be pauses."""
    times = steps.step_ns
    middle = float(np.median(times))
    odd = (times > middle + PAUSE_MADS * mad(times)) & (times > PAUSE_FACTOR * middle)
    if not LEAST_PERIODS <= odd.sum() <= MOST_PAUSES * odd.size or not middle:
        return np.zeros_like(odd)
    return np.asarray(odd)


def pauses(steps: JobSteps) -> Pauses | None:
    """Describe all single long steps together: their time beyond the median step, as a share of all; None where there are
    none."""
    times, odd = steps.step_ns, paused_steps(steps)
    if not odd.any():
        return None
    middle = float(np.median(times))
    beyond = np.where(odd, times - middle, 0.0)
    part = share(beyond, times)
    assert part is not None
    rank = None
    if steps.ranks > 1 and np.isfinite(steps.own_ns).all():
        last = Counter(np.argmax(steps.own_ns[:, odd], axis=0).tolist()).most_common(1)[0]
        rank = steps.diaries[last[0]].rank if last[1] >= 0.8 * odd.sum() else None
    own = odd & (np.nan_to_num(steps.delay_ns).max(axis=0) < 0.5 * beyond)
    alike = np.abs(np.log2(beyond[own] / np.median(beyond[own]))) <= 1 if own.any() else own[:0]
    of_one_kind = alike.size >= MOSTLY * odd.sum() and alike.mean() >= MOSTLY
    return Pauses(
        share=part,
        mean_ns=float(beyond[odd].mean()),
        period=beyond_chance(steps.numbers[own], steps.steps) if of_one_kind else None,
        rank=rank,
        part=_part_of(steps, odd, beyond),
    )


def _part_of(steps: JobSteps, odd: NDArray[np.bool_], beyond: Numbers) -> str | None:
    """Return the part that makes the steps ``odd`` longer by ``beyond`` [steps] ns, on the rank that comes last."""
    last = np.nan_to_num(steps.own_ns[:, odd]).argmax(axis=0)
    longer = {}
    for name, values in steps.parts_ns.items():
        part = np.nan_to_num(values)
        longer[name] = float((part[:, odd] - np.median(part, axis=1, keepdims=True))[last, np.arange(last.size)].sum())
    most = max(longer, key=longer.__getitem__)
    return most if longer[most] >= MOSTLY * float(beyond.sum()) else None


@record
class Longest:
    """A step without what lies between steps. rank: that waited least for others in it; event: what took most of what it has
    beyond the median."""

    number: int
    ns: float
    rank: int
    event: EventKind | None


def longest_step(steps: JobSteps) -> Longest | None:
    """Return the longest step after the warm-up that was not profiled; None where it is shorter than LONG medians."""
    count = steps.all_steps - steps.first
    net = np.stack([rank_diary.net_ns[:count] for rank_diary in steps.diaries])
    left_out: NDArray[np.bool_] = np.any([~rank_diary.timed[:count] for rank_diary in steps.diaries], axis=0)
    left_out[: max(0, steps.warm_up - steps.first)] = True
    net[:, left_out] = 0.0
    at = int(net.max(axis=0).argmax())
    waited = [np.nan_to_num(rank_diary.columns["comm_ns"][at]) for rank_diary in steps.diaries]
    rank = int((net[:, at] - waited).argmax())
    beyond = float(net[rank, at]) - float(np.median(steps.step_ns))
    if net[:, at].max() < LONG * float(np.median(steps.step_ns)):
        return None
    diary, number = steps.diaries[rank], at + steps.first + 1
    causes = [event for event in diary.events if event.inside and event.step == number and event.ns > beyond / 2]
    return Longest(number=number, ns=float(net[rank, at]), rank=diary.rank, event=causes[0].kind if causes else None)
