"""How often each rank came last, in waits that are independent of each other, and what that costs the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.records.trace_collectives import MatchedCollective
from stepscope.stats.spans import median
from stepscope.traces.rank_work import RankWork

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
    """By rank, over the instances whose last rank can be told."""
    told = [m for m in sorted(split, key=lambda m: min(r.start_ns for r in m.ranks)) if _told_apart(m)]
    mine: dict[int, list[int]] = defaultdict(list)
    for place, m in enumerate(told):
        for r in m.ranks:
            mine[r.rank].append(place)
    waits = [work.last_waits(m) for m in told]
    known: dict[tuple[int, ...], list[Episode]] = {}  # ranks of one group share theirs
    late: dict[int, Late] = {}
    for rank, places in mine.items():
        key = tuple(places)
        if key not in known:
            known[key] = _episodes(told, waits, key, work)
        late[rank] = _of_rank(rank, known[key])
    return late


def _told_apart(m: MatchedCollective) -> bool:
    """Whether somebody can be said to have come last: not where ranks came as close together as they left."""
    return (m.skew_ns or 0) > (m.end_skew_ns or 0)


def _episodes(
    told: Sequence[MatchedCollective], waits: Sequence[bool], places: Sequence[int], work: RankWork
) -> list[Episode]:
    found: list[Episode] = []
    ended = True
    for place in places:
        m = told[place]
        if ended and not (found and work.carries_on(m, found[-1][-1])):
            found.append([m])
        else:
            found[-1].append(m)
        ended = waits[place]
    return found


def _of_rank(rank: int, episodes: Sequence[Episode]) -> Late:
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
    """How much ``late`` (of a collective, ns) delays the peer that it delays most; never more than the capture.

    idle_only: at most what the peers stand idle in the collectives, as what they compute meanwhile costs nothing.

    A peer's sum over episodes. Of an episode: what the ranks of a set that meet in it (median) stand idle in it beyond the
    late rank, at least its latest single arrival there and at most the sum of all, which counts the same lateness again in
    every collective that carries it. Sets that one peer is in carry the same lateness too: the larger counts.
    """
    idle = _idle(work, episodes)
    total: dict[int, int] = defaultdict(int)
    for at, episode in enumerate(episodes):
        sets: dict[frozenset[int], list[int]] = defaultdict(list)
        for m in episode:
            if m.last_ranks == (rank,):
                sets[frozenset(r.rank for r in m.ranks if r.rank != rank)].append(max(late(m), 0))
        of_peer: dict[int, int] = defaultdict(int)
        for members, each in sets.items():
            theirs = round(median([idle[peer].get(at, 0) for peer in members]))
            delay = min(max(theirs - idle[rank].get(at, 0), *each), sum(each))
            if idle_only:
                delay = min(delay, theirs)
            for peer in members:
                of_peer[peer] = max(of_peer[peer], delay)
        for peer, delay in of_peer.items():
            total[peer] += delay
    return min(max(total.values(), default=0), work.window_ns)


def _idle(work: RankWork, episodes: Sequence[Episode]) -> Mapping[int, Mapping[int, int]]:
    """By rank and episode: how long it communicates in it without computing, each moment once."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, episode in enumerate(episodes):
        for m in episode:
            for r in m.ranks:
                places[r.rank].append((r.position, at))
    idle: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each, found in places.items():
        found.sort()
        for (_, at), exposed in zip(found, work.exposed_once(each, [position for position, _ in found]), strict=True):
            idle[each][at] += exposed
    return idle
