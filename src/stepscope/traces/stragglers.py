"""Who makes the others wait, how surely, and why; or that nobody does.

How often each rank came last, in waits that are independent of each other, and what that costs the others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, in_words, plural
from stepscope.records.trace_collectives import JobCollectives, MatchedCollective, RankCommunication
from stepscope.records.trace_path import CauseShare, Straggler, StragglerReport
from stepscope.stats.compare import CLEAR_EXCESS, CLEAR_NOISE, LEAST_STEPS, LONE_EXCESS, chronic_excess
from stepscope.stats.spans import median
from stepscope.traces.grid import Stage, is_grid, within
from stepscope.traces.waits import RankWork, exposed_waiting, waits_of

Episode = list[MatchedCollective]
"""Consecutive collectives of one rank that one and the same lateness reaches: a rank that computes on while they run (DDP's
buckets) is as late in each as in the one before, plus what it lost since. It ends where the last rank itself waits for the
collective; collectives beside that one, and those of other groups that follow without work in between, belong to it."""


@dataclass(slots=True)
class Late:
    """What one rank did to the others, over the split instances."""

    instances: int = 0
    chances: list[float] = field(default_factory=list)  # one an episode
    last: list[MatchedCollective] = field(default_factory=list)  # alone
    ended: list[Episode] = field(default_factory=list)  # whose largest skew is its own
    skew_ns: float = 0.0


def lateness(split: Sequence[MatchedCollective], work: RankWork) -> dict[int, Late]:
    """Return what each rank did to the others, over the instances whose last rank can be told."""
    # Nobody can be said to have come last where ranks came as close together as they left.
    apart = [m for m in split if (m.skew_ns or 0) > (m.end_skew_ns or 0)]
    decided = sorted(apart, key=lambda m: min(r.start_ns for r in m.ranks))
    by_rank: dict[int, list[int]] = defaultdict(list)
    for place, m in enumerate(decided):
        for r in m.ranks:
            by_rank[r.rank].append(place)
    waits = [work.last_waits(m) for m in decided]
    shared: dict[tuple[int, ...], list[Episode]] = {}  # ranks of one group share theirs
    late: dict[int, Late] = {}
    for rank, places in by_rank.items():
        key = tuple(places)
        if key not in shared:
            shared[key] = _rank_episodes(decided, waits, key, work)
        late[rank] = _rank_lateness(rank, shared[key])
    return late


def _rank_episodes(
    decided: Sequence[MatchedCollective], waits: Sequence[bool], places: Sequence[int], work: RankWork
) -> list[Episode]:
    """Return a rank's collectives in episodes: one ends where the rank waits, so that it starts again in time with the
    others."""
    episodes: list[Episode] = []
    ended = True
    for place in places:
        m = decided[place]
        if ended and not (episodes and work.carries_on(m, episodes[-1][-1])):
            episodes.append([m])
        else:
            episodes[-1].append(m)
        ended = waits[place]
    return episodes


def _rank_lateness(rank: int, episodes: Sequence[Episode]) -> Late:
    """Return how late a rank was: episodes that it ended last, its skew in ns, and the chance of each."""
    late = Late()
    for episode in episodes:
        late.instances += len(episode)
        late.chances.append(max(1 / len(m.ranks) for m in episode))
        for m in episode:
            if rank in m.last_ranks:
                late.skew_ns += (m.skew_ns or 0) / len(m.last_ranks)
                if len(m.last_ranks) == 1:
                    late.last.append(m)
        if max(episode, key=lambda m: m.skew_ns or 0).last_ranks == (rank,):
            late.ended.append(episode)
    return late


def delay_ns(
    work: RankWork,
    rank: int,
    episodes: Sequence[Episode],
    late: Callable[[MatchedCollective], int],
    *,
    idle_only: bool = False,
) -> int:
    """Return how much ``late`` (of a collective, ns) delays the peer that it delays most; never more than the capture.

    idle_only: at most what the peers stand idle in the collectives, as what they compute meanwhile costs nothing.

    A peer's delay is its sum over episodes. An episode counts what the ranks of a set that meet in it (median) stand idle in
    it beyond the late rank, at least its latest single arrival there and at most the sum of all, which counts the same
    lateness again in every collective that carries it. Sets that one peer is in carry the same lateness too: the larger
    counts.
    """
    idle = _idle_ns(work, episodes)
    total: dict[int, int] = defaultdict(int)
    for at, episode in enumerate(episodes):
        sets: dict[frozenset[int], list[int]] = defaultdict(list)
        for m in episode:
            if m.last_ranks == (rank,):
                sets[frozenset(r.rank for r in m.ranks if r.rank != rank)].append(max(late(m), 0))
        of_peer: dict[int, int] = defaultdict(int)
        for members, delays in sets.items():
            theirs = round(median([idle[peer].get(at, 0) for peer in members]))
            delay = min(max(theirs - idle[rank].get(at, 0), *delays), sum(delays))
            if idle_only:
                delay = min(delay, theirs)
            for peer in members:
                of_peer[peer] = max(of_peer[peer], delay)
        for peer, delay in of_peer.items():
            total[peer] += delay
    return min(max(total.values(), default=0), work.window_ns)


def _idle_ns(work: RankWork, episodes: Sequence[Episode]) -> Mapping[int, Mapping[int, int]]:
    """Return by rank and episode how long the rank communicates in it without computing, each moment once."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, episode in enumerate(episodes):
        for m in episode:
            for r in m.ranks:
                places[r.rank].append((r.position, at))
    idle: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rank, place in places.items():
        place.sort()
        for (_, at), exposed in zip(place, work.exposed_once(rank, [position for position, _ in place]), strict=True):
            idle[rank][at] += exposed
    return idle


MIN_SHARE = 0.20
MAX_P = 0.05
CLEAR_WAITS, CLEAR_LEAD, CLEAR_P = 3, 2.0, 0.015
"""Last in every one of at least 3 independent waits, each time by 2 times what the others differ and what its lead varies:
of ranks that differ by chance one is so in at most 1.5% of captures (simulated: 2 to 8 ranks, normal and exponential
noise, 2026-11; 2 ranks and 3 waits are the worst). The order of arrival alone proves nothing over so few waits."""
_CAUSES = {
    "compute": "more compute",
    "memory": "memory copies",
    "host_late": "launch-bound",
    "launch_latency": "launch-bound",
    "sync": "sync",
    "data": "data",
}
_WORDS = {
    "more compute": "in more computation",
    "memory copies": "in memory copies",
    "launch-bound": "because its host launched later",
    "sync": "because its host waited for the device",
    "data": "in data loading",
}
_MOSTLY = 2 / 3  # of the skew: from here on the ranks do not wait for a different one each time
_NOTABLE = 0.1  # of the transfer time: skew below is not worth a word
_EXPLAINS = 0.5  # of the excess, for a cause to be named


def find_stragglers(
    ranks: Sequence[RankCommunication], job: JobCollectives, stages: Sequence[Stage] = ()
) -> StragglerReport:
    """Find ranks that came last more than chance allows (short traces) or whose own time a step exceeds the others'.

    Only collectives that all ranks leave together count, and of them those that could be split. The causes come
    from what the rank did between its collectives, against the median of the others in the same instances. In a grid the
    own time alone decides, against that of the ranks of the same stage: lateness is passed on there.
    """
    split = within(stages, [m for m in job.instances if m.skew_ns is not None and len(m.ranks) > 1])
    skew = sum(m.skew_ns or 0 for m in split)
    steps = sorted({m.step for m in split if m.step is not None})
    work = RankWork(ranks, split)
    by_rank = lateness(split, work)
    if stages or is_grid(split):
        stragglers = _stragglers_in_grid(ranks, job, by_rank, work, skew, stages or [tuple(r.rank for r in ranks)])
    elif len(steps) >= LEAST_STEPS:
        stragglers = _stragglers_by_steps(by_rank, work, skew)
    else:
        stragglers = _stragglers_of_few_steps(by_rank, work, split, steps=len(steps))
    stragglers.sort(key=lambda s: (-s.share_of_skew, s.rank))
    waits = waits_of(job)
    pattern = "alone" if max(map(len, stages), default=2) == 1 else _skew_pattern(stragglers, split, skew)
    return StragglerReport(
        stragglers=tuple(stragglers),
        pattern=pattern,
        skew_ns=skew,
        # What stages wait for each other is the pipeline's bubble.
        waiting_ns=sum(exposed_waiting(m, waits) for m in split)
        if stages
        else sum(total.exposed_ns for total in job.totals),
        instances=len(split),
        steps=len(steps),
        text=_stragglers_text(stragglers, split, pattern, len(steps)),
    )


WHOLE_STEPS = 2
"""From so many on, steps that the capture holds in full decide alone."""


def _stragglers_in_grid(
    ranks: Sequence[RankCommunication],
    job: JobCollectives,
    by_rank: Mapping[int, Late],
    work: RankWork,
    skew: int,
    stages: Sequence[Stage],
) -> list[Straggler]:
    """Return the ranks that are slower than those that do the same work, by stage of a pipeline or part of a mesh."""
    own_ns, traced = work.own_ns(), {r.rank for r in ranks}
    # What a rank did before its first collective is no part of its own time: it lacks in that step.
    begun = {c.step for r in ranks for c in r.collectives if c.own.from_window_start}
    if len(own_ns.keys() - begun) >= WHOLE_STEPS:
        own_ns = {step: values for step, values in own_ns.items() if step not in begun}
    stragglers = []
    for stage in stages:
        members = [rank for rank in stage if rank in traced]
        pairs_of = _own_and_others(own_ns.values(), members)
        for rank in pairs_of.keys() & members:
            pairs = pairs_of[rank]
            if not _is_slower(pairs, _peer_spread_ns(own_ns.values(), members, rank)):
                continue
            peers = tuple(r for r in members if r != rank)
            stragglers.append(_grid_straggler(ranks, job, work, rank, peers, pairs, by_rank.get(rank, Late()), skew))
    return _stragglers_with_savings(ranks, job, stragglers)


def _stragglers_with_savings(
    ranks: Sequence[RankCommunication], job: JobCollectives, stragglers: list[Straggler]
) -> list[Straggler]:
    """Return late ranks, each with its part of what all as fast as their peers would save: one alone hides another."""
    if len(stragglers) < 2:
        return stragglers
    from stepscope.traces.without import saved_ns

    saved = saved_ns(ranks, job, {s.rank: s.peers for s in stragglers})
    late = sum(s.late_ns for s in stragglers)
    if saved is None or saved <= sum(s.saved_ns for s in stragglers) or late <= 0:
        return stragglers
    shared = []
    for s in stragglers:
        others = sorted(other.rank for other in stragglers if other is not s)
        shown = f"{plural(len(others), 'rank')} {in_words(others)}"
        evidence = f"{s.evidence}; its part of what it would save to have {shown} as fast, too"
        shared.append(replace(s, saved_ns=round(saved * s.late_ns / late), evidence=evidence))
    return shared


def _peer_spread_ns(steps: Iterable[Mapping[int, float]], members: Collection[int], rank: int) -> float:
    """How far the others' own times lie apart, median over steps, ns; 0 for one other. Of others that are clearly slow, too,
    fewer than half, it is that of the rest."""
    others = [sorted(own for r, own in values.items() if r != rank and r in members) for values in steps]
    return median([_clear_range(values) for values in others if values] or [0.0])


def _clear_range(ordered: Sequence[float]) -> float:
    for count in range(len(ordered) // 2 + 1, len(ordered)):
        least, most = ordered[0], ordered[count - 1]
        if ordered[count] - most >= max(CLEAR_NOISE * (most - least), CLEAR_EXCESS * most):
            return most - least
    return ordered[-1] - ordered[0]


def _is_slower(pairs: Sequence[Pair], spread: float) -> bool:
    """Whether a rank is slow by its own time and its peers' in every step."""
    excess, others = _excess_and_others_ns(pairs)
    if len(pairs) >= LEAST_STEPS:
        return chronic_excess(excess, others) is not None
    middle, typical = median(excess), median(others)
    varies = max(spread, median(np.abs(excess - middle)), median(np.abs(others - typical)))
    least = CLEAR_EXCESS if len(pairs) > 1 else LONE_EXCESS
    return bool((excess > 0).all()) and middle >= least * typical and middle >= CLEAR_NOISE * varies


def _grid_straggler(
    ranks: Sequence[RankCommunication],
    job: JobCollectives,
    work: RankWork,
    rank: int,
    peers: Sequence[int],
    pairs: Sequence[Pair],
    late: Late,
    skew: int,
) -> Straggler:
    """Return a straggler of a grid with its evidence: its own time beside its peers', and what the job would save."""
    from stepscope.traces.without import saved_ns  # where somebody is late alone

    excess = _excess_and_others_ns(pairs)[0]
    ratio = median([own / others for own, others in pairs if others] or [1.0])
    causes = work.own_causes(rank, peers)
    cause, explained_ns = _main_cause_and_ns(causes)
    saved = saved_ns(ranks, job, {rank: peers})
    steps = counted(len(pairs), "step") if work.step_count else "the capture"
    a_step = " a step" if work.step_count else ""
    shown = "its stage's other rank" if len(peers) == 1 else f"the {len(peers)} ranks that do the same work"
    evidence = [
        f"its own time is {ratio:.1f}x that of {shown}, {format_duration(median(excess))} more{a_step}",
        f"{format_duration(explained_ns / max(1, work.step_count))}{a_step} of it {_WORDS[cause]}"
        if cause in _WORDS
        else "",
        f"last in {len(late.last)} of {late.instances} collectives with them" if late.last else "",
    ]
    return Straggler(
        rank=rank,
        rule="grid",
        kind="chronic",
        share_of_skew=late.skew_ns / skew if skew else 0.0,
        times_last=len(late.last),
        instances=late.instances,
        steps=len(pairs) if work.step_count else 0,
        p_value=None,
        excess_ns=median(excess),
        excess_low_ns=float(min(excess)),
        saved_ns=saved if saved is not None else round(sum(excess)),
        late_ns=round(sum(excess)),
        largest_share=0.0,
        cause=cause,
        causes=causes,
        confidence=f"in each of {steps}" if len(pairs) < LEAST_STEPS else f"median of {steps}",
        evidence="; ".join(text for text in evidence if text),
        peers=tuple(peers),
    )


def binomial_tail(at_least: int, chances: Sequence[float]) -> float:
    """Probability of at least so many successes in independent trials with these chances of success (exact).

    Equal chances are binomial; the sum over different ones is a convolution of those.
    """
    if at_least <= 0:
        return 1.0
    exactly = np.ones(1)
    for chance, trials in Counter(chances).items():
        exactly = np.convolve(exactly, _binomial_probabilities(chance, trials))
    return min(1.0, float(exactly[at_least:].sum()))


def _binomial_probabilities(chance: float, trials: int) -> NDArray[np.float64]:
    """P(exactly k successes) for k = 0 .. trials."""
    k = np.arange(trials + 1)
    if chance >= 1.0:
        return np.asarray(k == trials, dtype=np.float64)
    logs = np.array(
        [
            math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1)
            + (i * math.log(chance) if i else 0.0) + (trials - i) * math.log1p(-chance)
            for i in k.tolist()
        ]
    )  # fmt: skip
    return np.asarray(np.exp(logs))


def _stragglers_of_few_steps(
    by_rank: Mapping[int, Late], work: RankWork, split: Sequence[MatchedCollective], *, steps: int
) -> list[Straggler]:
    """Return the ranks that are last more often than chance has it, of a capture too short for steps."""
    stragglers = []
    skew, by_step = sum(m.skew_ns or 0 for m in split), _skew_by_step(split)
    ranks = {r.rank for m in split for r in m.ranks}
    for rank, late in by_rank.items():
        share = late.skew_ns / skew if skew else 0.0
        if share < MIN_SHARE or not late.ended:
            continue
        p = min(1.0, binomial_tail(len(late.ended), late.chances) * len(by_rank))
        p = min(p, CLEAR_P) if _clearly_last(late) else p
        over = _trials_text(len(late.chances), late.instances)
        if (whole := _p_of_steps(rank, by_step, len(ranks))) is not None and whole > p:
            p, over = whole, counted(len(by_step), "step")
        if p >= MAX_P:
            continue
        rests = counted(steps, "step") if steps else "no recorded steps"
        stragglers.append(
            _described_straggler(
                rank,
                "short",
                late,
                share,
                steps,
                work,
                p_value=p,
                confidence=f"p = {p:.2g} over {over}; rests on {rests}",
            )
        )
    return stragglers


def _skew_by_step(split: Sequence[MatchedCollective]) -> list[Counter[int]]:
    """The skew of each step by the rank that came last, -1 where several did."""
    skews: dict[int, Counter[int]] = defaultdict(Counter)
    for m in split:
        if m.step is not None:
            skews[m.step][m.last_rank if m.last_rank is not None else -1] += m.skew_ns or 0
    return list(skews.values())


def _p_of_steps(rank: int, by_step: Sequence[Counter[int]], ranks: int) -> float | None:
    """Probability that some rank is by chance the late one in as many steps as ``rank``; None: one step, or none marked.

    The waits of a step are not independent: whatever makes a rank late makes it late in several of them. A clear lead in
    each of three steps proves nothing either: of 340 clean cells with three profiled steps, 11 had it (2 cores, 2026-11).
    """
    if len(by_step) < 2:
        return None
    leads = [own[rank] - max((ns for other, ns in own.items() if other != rank), default=0) for own in by_step]
    return min(1.0, ranks * binomial_tail(sum(lead > 0 for lead in leads), [1 / ranks] * len(leads)))


def _clearly_last(late: Late) -> bool:
    """Whether a rank ends all its episodes last, by far more than the others are apart."""
    if len(late.ended) < max(CLEAR_WAITS, len(late.chances)):
        return False
    worst = [max(episode, key=lambda m: m.skew_ns or 0) for episode in late.ended]
    leads = [m.lead_ns or 0 for m in worst]
    others = max((m.skew_ns or 0) - lead for m, lead in zip(worst, leads, strict=True))
    return min(leads) >= CLEAR_LEAD * max(others, max(leads) - min(leads))


def _trials_text(episodes: int, collectives: int) -> str:
    """The trials of the test: one a collective, or one for collectives that overlap computation until a rank waits."""
    if episodes == collectives:
        return counted(collectives, "collective")
    return f"{counted(episodes, 'independent wait')} in {counted(collectives, 'collective')}"


def _stragglers_by_steps(by_rank: Mapping[int, Late], work: RankWork, skew: int) -> list[Straggler]:
    """Return the ranks whose own time is longer in the median step, by more than its interval."""
    own_ns = work.own_ns()
    pairs_of: dict[frozenset[int], dict[int, list[Pair]]] = {}  # ranks that met share theirs
    stragglers = []
    for rank, late in by_rank.items():
        met = work.met[rank]
        if met not in pairs_of:
            pairs_of[met] = _own_and_others(own_ns.values(), met)
        pairs = pairs_of[met].get(rank, [])
        slow = chronic_excess(*_excess_and_others_ns(pairs)) if late.ended else None
        if slow is None:
            continue
        stragglers.append(
            _described_straggler(
                rank,
                "steps",
                late,
                late.skew_ns / skew if skew else 0.0,
                len(pairs),
                work,
                excess_ns=slow.excess_ns,
                excess_low_ns=slow.low_ns,
                confidence=f"median of {len(pairs)} steps, 95% interval from {slow.low_ns / 1000:,.0f} us",
            )
        )
    return stragglers


Pair = tuple[float, float]
"""A rank's own time in a step, and the median of the others', ns."""


def _own_and_others(steps: Iterable[Mapping[int, float]], ranks: Collection[int]) -> dict[int, list[Pair]]:
    """Return its pairs by each of these ranks, of the steps that another has too; O(n log n) for all n ranks."""
    pairs: dict[int, list[Pair]] = defaultdict(list)
    for values in steps:
        ordered = sorted((values[rank], rank) for rank in ranks if rank in values)
        below, above = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
        for place, (own, rank) in enumerate(ordered if len(ordered) > 1 else ()):
            others = ordered[below + (place <= below)][0] + ordered[above + (place <= above)][0]
            pairs[rank].append((own, others / 2))
    return pairs


def _excess_and_others_ns(pairs: Sequence[Pair]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how much longer the rank took, and the others' time."""
    own, others = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return own - others, others


def _described_straggler(
    rank: int,
    rule: str,
    late: Late,
    share: float,
    steps: int,
    work: RankWork,
    *,
    confidence: str,
    p_value: float | None = None,
    excess_ns: float | None = None,
    excess_low_ns: float | None = None,
) -> Straggler:
    """Return a straggler with its evidence: how often it is last, by how much, and what it does in that time."""
    causes = work.causes(rank, late.last)
    cause, explained_ns = _main_cause_and_ns(causes)
    late_ns = delay_ns(work, rank, late.ended, lambda m: _behind_ns(m, rank))
    worst = max(late.last, key=lambda m: m.skew_ns or 0)
    largest = (worst.skew_ns or 0) / late.skew_ns if late.skew_ns else 0.0
    evidence = [
        f"last in {len(late.last)} of {late.instances} collectives, {format_percent(share)} of all skew",
        f"{format_duration(late_ns)} behind the median of its peers",
    ]
    if cause in _WORDS:
        evidence.append(f"{format_duration(explained_ns)} of it {_WORDS[cause]}")
    if largest >= 0.5 and len(late.last) > 1:
        evidence.append(f"{format_percent(largest)} of its skew in one {worst.op}")
    before = sum(m.skew_ns or 0 for m in late.last if work.began_late(m, rank, _behind_ns(m, rank)))
    if before >= 0.5 * late.skew_ns:
        evidence.append("it was already late at its first device work in the capture")
    return Straggler(
        rank=rank,
        rule=rule,
        kind=_straggler_kind(late, work),
        share_of_skew=share,
        times_last=len(late.last),
        instances=late.instances,
        steps=steps,
        p_value=p_value,
        excess_ns=excess_ns,
        excess_low_ns=excess_low_ns,
        saved_ns=delay_ns(work, rank, late.ended, lambda m: m.lead_ns or 0, idle_only=True),
        late_ns=late_ns,
        largest_share=largest,
        cause=cause,
        causes=causes,
        confidence=confidence,
        evidence="; ".join(evidence),
    )


def _straggler_kind(late: Late, work: RankWork) -> str:
    """Return ``chronic`` for a rank that is last in most steps; with fewer than three steps, in most collectives."""
    if work.step_count >= 3:
        hit = {m.step for m in late.last if m.step is not None}
        if len(hit) == 1:
            return "one-off"
        return "chronic" if 2 * len(hit) >= work.step_count else "rotating"
    return "chronic" if 2 * len(late.last) >= late.instances else "rotating"


def _behind_ns(m: MatchedCollective, rank: int) -> int:
    """How long after the median of the others a rank entered."""
    own = next(r.start_ns for r in m.ranks if r.rank == rank)
    others = [r.start_ns for r in m.ranks if r.rank != rank]
    base = min(others)
    return own - base - round(median([s - base for s in others]))


def _main_cause_and_ns(causes: Sequence[CauseShare]) -> tuple[str, int]:
    """The kind of time that makes up at least half of what the rank took longer than its peers, and how much."""
    longer = sum(max(c.excess_ns, 0) for c in causes)
    by_name: Counter[str] = Counter()
    for c in causes:
        by_name[_CAUSES.get(c.cause, "unknown")] += c.excess_ns
    if longer <= 0:
        return "unknown", 0
    name, most = by_name.most_common(1)[0]
    return (name, most) if most >= _EXPLAINS * longer else ("unknown", 0)


def _skew_pattern(stragglers: Sequence[Straggler], split: Sequence[MatchedCollective], skew: int) -> str:
    """Name what the skew of a job is: a straggler's kind, none, a one-off, undecided or rotating."""
    if stragglers:
        return stragglers[0].kind
    transfer = sum(m.transfer_ns or 0 for m in split)
    if skew == 0 or skew < _NOTABLE * transfer:
        return "none"
    largest = max(m.skew_ns or 0 for m in split)
    if len(split) > 2 and 2 * largest >= skew:
        return "one-off"
    return "undecided" if _mostly_last(split, skew) is not None else "rotating"


def _mostly_last(split: Sequence[MatchedCollective], skew: int) -> tuple[int, float] | None:
    """Return (rank, share) where one rank is last in most of the skew."""
    by_rank: Counter[int] = Counter()
    for m in split:
        if len(m.last_ranks) == 1:
            by_rank[m.last_ranks[0]] += m.skew_ns or 0
    rank, most = by_rank.most_common(1)[0] if by_rank else (0, 0)
    return (rank, most / skew) if skew and most >= _MOSTLY * skew else None


def _stragglers_text(
    stragglers: Sequence[Straggler], split: Sequence[MatchedCollective], pattern: str, steps: int
) -> str:
    """Say which ranks are stragglers and why, or why none is named."""
    if stragglers:
        return "; ".join(f"rank {s.rank}: {s.evidence}" for s in stragglers)
    if pattern == "alone":
        return "no straggler can be named: each stage has one rank, no other does the same work"
    if not split:
        return "no straggler can be named: no collective on two ranks could be split"
    rests = f"{len(split):,} collectives" + (f" in {steps} steps" if steps else "")
    if pattern == "one-off":
        worst = max(split, key=lambda m: m.skew_ns or 0)
        return f"no straggler over {rests}; one {worst.op} carries most of the skew, rank {worst.last_rank} last in it"
    if pattern == "rotating":
        return f"no straggler over {rests}: the last rank changes"
    if pattern == "undecided" and (mostly := _mostly_last(split, sum(m.skew_ns or 0 for m in split))) is not None:
        return f"no certain straggler over {rests}: rank {mostly[0]} is last in {format_percent(mostly[1])} of the skew"
    return f"no straggler over {rests}"
