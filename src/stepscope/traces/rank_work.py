"""What ranks did on their own between the collectives of a job: how late that can make them, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.records.trace_collectives import (
    IDLE_CAUSES,
    MatchedCollective,
    OwnTime,
    RankCollective,
    RankCommunication,
    RankWaiting,
)
from stepscope.records.trace_path import CauseShare
from stepscope.stats import spans
from stepscope.stats.spans import median
from stepscope.traces.events import Ints
from stepscope.traces.waits import spans_of

_KINDS = ("compute", "memory", *IDLE_CAUSES)
_MOSTLY = 0.5


class RankWork:
    """The ranks' work around the split instances. window_ns: of the longest capture."""

    def __init__(self, ranks: Sequence[RankCommunication], split: Sequence[MatchedCollective]) -> None:
        self._ranks = {r.rank: r for r in ranks}
        self.step_count = len({m.step for m in split if m.step is not None})
        self.peers = _peers(split)
        self.window_ns = max((r.window_ns[1] - r.window_ns[0] for r in ranks if r.window_ns is not None), default=0)

    def own_by_step(self) -> dict[int, dict[int, float]]:
        """Own time by step and rank, ns: between collectives of any kind, and what it computed beside them; no waiting."""
        totals: dict[int, dict[int, float]] = defaultdict(dict)
        for rank, each in self._ranks.items():
            places = range(len(each.collectives))
            begins, ends = self._once(rank, places)
            hidden = (ends - begins - self._exposed(rank, begins, ends)).tolist()
            for c, covered in zip(each.collectives, hidden, strict=True):
                if c.step is not None and not c.own.from_window_start:
                    totals[c.step][rank] = totals[c.step].get(rank, 0.0) + c.own.own_ns + covered
        return totals

    def exposed_once(self, rank: int, positions: Sequence[int]) -> list[int]:
        """Of each of these collectives, ascending: what no computation covers, ns, and one before it does not count."""
        return [int(each) for each in self._exposed(rank, *self._once(rank, positions))]

    def _exposed(self, rank: int, begins: Ints, ends: Ints) -> Ints:
        return spans.measure_within(spans_of(self._ranks[rank].exposed), begins, ends)

    def _once(self, rank: int, positions: Sequence[int]) -> tuple[Ints, Ints]:
        """Start and end of each without what those before it cover."""
        chosen = [self._ranks[rank].collectives[i] for i in positions]
        starts = np.array([c.start_ns for c in chosen], dtype=np.int64)
        ends = np.array([c.end_ns for c in chosen], dtype=np.int64)
        begins = starts.copy()
        begins[1:] = np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1])
        return begins, np.maximum(begins, ends)

    def began_late(self, m: MatchedCollective, rank: int, behind_ns: int) -> bool:
        """Whether the capture begins with this collective on all ranks, and began later on this one by most of
        ``behind_ns``: what made it late lies before."""
        begins = {r.rank: r.start_ns - self._own(r).own_ns for r in m.ranks if self._own(r).from_window_start}
        if len(begins) < len(m.ranks):
            return False
        own = begins.pop(rank)
        base = min(begins.values())
        later = own - base - median([begin - base for begin in begins.values()])
        return behind_ns > 0 and later >= _MOSTLY * behind_ns

    def causes(self, rank: int, instances: Sequence[MatchedCollective]) -> tuple[CauseShare, ...]:
        """By kind of own time, over these instances: the rank's, the median of the others', the difference."""
        rank_ns: Counter[str] = Counter()
        peers_ns: Counter[str] = Counter()
        for m in instances:
            own = {r.rank: self._own(r) for r in m.ranks}
            for cause in _KINDS:
                beside = {r.rank: self._beside(r) if cause == "compute" else 0 for r in m.ranks}
                rank_ns[cause] += getattr(own[rank], f"{cause}_ns") + beside[rank]
                others = [getattr(o, f"{cause}_ns") + beside[r] for r, o in own.items() if r != rank]
                peers_ns[cause] += round(median(others))
        found = [
            CauseShare(
                cause=cause,
                rank_ns=rank_ns[cause],
                peers_ns=peers_ns[cause],
                excess_ns=rank_ns[cause] - peers_ns[cause],
            )
            for cause in _KINDS
            if rank_ns[cause] or peers_ns[cause]
        ]
        return tuple(sorted(found, key=lambda c: -c.excess_ns))

    def carries_on(self, m: MatchedCollective, before: MatchedCollective) -> bool:
        """Whether a rank that came last was as late in ``before``, its previous collective: since then it had too little
        time of its own to become as late as it is."""
        places = {r.rank: r.position for r in before.ranks}
        for r in m.ranks:
            if r.rank in m.last_ranks and places.get(r.rank) == r.position - 1:
                return self._own(r).own_ns + self._beside(r) < _MOSTLY * (m.skew_ns or 0)
        return False

    def last_waits(self, m: MatchedCollective) -> bool:
        """Whether a rank that came last has nothing to compute for most of the transfer."""
        late = (self._ranks[r.rank].collectives[r.position] for r in m.ranks if r.rank in m.last_ranks)
        return any(2 * c.exposed_ns >= c.duration_ns for c in late)

    def _beside(self, part: RankWaiting) -> int:
        """What the rank computed during its previous collective, ns."""
        return _hidden(self._ranks[part.rank].collectives[part.position - 1]) if part.position else 0

    def _own(self, part: RankWaiting) -> OwnTime:
        return self._ranks[part.rank].collectives[part.position].own


def _hidden(c: RankCollective) -> int:
    return max(c.duration_ns - c.exposed_ns, 0)


def _peers(split: Sequence[MatchedCollective]) -> dict[int, frozenset[int]]:
    """For each rank the others of the largest set of ranks that it met in one collective."""
    largest: dict[int, frozenset[int]] = {}
    for members in {frozenset(r.rank for r in m.ranks) for m in split}:
        for rank in members:
            if len(members) > len(largest.get(rank, ())) + 1:
                largest[rank] = members - {rank}
    return largest
