"""The critical path across ranks: from rank to rank wherever one waited for another in a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.core.errors import Unavailable
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_path import CrossRankPath, PathLeg, PathParts, RankLegs, RankShare

_FIELDS = tuple(PathParts.__dataclass_fields__)


def cross_rank_path(
    legs: Sequence[RankLegs], matched: Sequence[MatchedCollective], *, end_rank: int | None = None
) -> CrossRankPath | Unavailable:
    """Follow the path back from the end of ``end_rank`` (None: of the rank that ends last, on aligned clocks).

    At a matched collective the path goes on at the rank that arrived last (at its own when all arrived at once), and
    only what follows that is on the path; at a message, at the rank that began it last. One that is not split into
    transfer and waiting stays on its rank, whole.
    """
    by_rank = {r.rank: r for r in legs}
    if not by_rank:
        return Unavailable("no rank has a path")
    at = {(r.rank, r.position): m for m in matched for r in m.ranks}
    end = max(legs, key=lambda r: r.end_ns).rank if end_rank is None else end_rank
    rank, leg = end, by_rank[end].last
    spent: dict[int, list[int]] = {}
    transfer = collectives = unmatched = hops = 0
    seen: set[tuple[int, int]] = set()
    while True:
        _add(spent, rank, leg)
        place = leg.back_to
        if place is None:
            break
        if (rank, place) in seen:
            # Matches that cross each other (A before B on one rank, after it on another) would never end.
            return Unavailable(f"the matched collectives contradict each other at rank {rank}, collective {place}")
        seen.add((rank, place))
        collectives += 1
        match = at.get((rank, place))
        entered = _entered(match, rank, by_rank)
        moved = None if match is None else _transfer(match, rank)
        if moved is None or entered is None:
            unmatched += 1
            transfer += by_rank[rank].durations_ns[place]
        else:
            transfer += moved
            hops += entered[0] != rank
            rank, place = entered
        leg = by_rank[rank].legs[place]
    shares = tuple(
        RankShare(rank=r, parts=PathParts(**dict(zip(_FIELDS, spent[r], strict=True)))) for r in sorted(spent)
    )
    return CrossRankPath(
        end_rank=end,
        total_ns=transfer + sum(s.parts.total_ns for s in shares),
        transfer_ns=transfer,
        ranks=shares,
        collectives=collectives,
        unmatched=unmatched,
        hops=hops,
    )


def _entered(match: MatchedCollective | None, rank: int, known: Mapping[int, RankLegs]) -> tuple[int, int] | None:
    """Where the path goes on: the rank that all others waited for, and the collective's place there."""
    if match is None:
        return None
    last = rank if match.last_rank is None else match.last_rank
    if match.op == "send_recv":
        last = max(match.ranks, key=lambda r: (r.start_ns, r.rank == rank)).rank
    return next(((r.rank, r.position) for r in match.ranks if r.rank == last and last in known), None)


def _transfer(match: MatchedCollective, rank: int) -> int | None:
    """What the collective takes on this rank once all have begun it: its transfer, and how much later than the first rank
    this one leaves it; of a message, until this rank is done with it. None where it is not split."""
    own_end = next(r.end_ns for r in match.ranks if r.rank == rank)
    if match.op == "send_recv" and len(match.ranks) == 2:
        return max(0, own_end - max(r.start_ns for r in match.ranks))
    if match.transfer_ns is None:
        return None
    return match.transfer_ns + own_end - min(r.end_ns for r in match.ranks)


def _add(spent: dict[int, list[int]], rank: int, leg: PathLeg) -> None:
    total = spent.setdefault(rank, [0] * len(_FIELDS))
    for i, name in enumerate(_FIELDS):
        total[i] += getattr(leg.parts, name)
