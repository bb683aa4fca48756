"""When a rank only waits: it has entered a collective, another rank has not, and none of its own transfers meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.records.trace_collectives import (
    JobCollectives,
    MatchedCollective,
    RankCommunication,
    RankWaitTotal,
)
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.packed_spans import exact, spans_of


def wait_totals(
    found: Sequence[MatchedCollective], ranks: Mapping[int, RankCommunication]
) -> tuple[RankWaitTotal, ...]:
    """By rank, ascending: what it waited, in sum and while nothing transferred.

    A collective that could not be split counts as transferring from its start to its end.
    """
    parts: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    split: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    for m in found:
        for each in m.ranks:
            own = ranks[each.rank].collectives[each.position]
            waiting_ns = each.waiting_ns or 0
            parts[each.rank].append((own.start_ns, min(own.start_ns + waiting_ns, own.end_ns), own.end_ns))
            split[each.rank] += each.waiting_ns is not None
        if len(m.last_ranks) == 1:
            last[m.last_ranks[0]] += 1
    totals = []
    for rank in sorted(ranks):
        entered, met, left = np.array(parts[rank], dtype=np.int64).reshape(-1, 3).T
        alone = spans.subtract(spans.union(entered, met), spans.union(met, left))
        totals.append(
            RankWaitTotal(
                rank=rank,
                waiting_ns=int((met - entered).sum()),
                times_last=last[rank],
                instances=split[rank],
                alone=exact(alone),
                alone_ns=alone.measure,
                exposed_ns=spans.intersect(alone, spans_of(ranks[rank].exposed)).measure,
            )
        )
    return tuple(totals)


def waits_of(job: JobCollectives | None) -> dict[int, RankWaitTotal]:
    """The totals by rank, of ranks with collectives that could be split: of the others it is not known."""
    return {total.rank: total for total in job.totals if total.instances} if job is not None else {}


class ExposedWaits:
    """What each rank loses in collectives to ranks that come later, on its own clock; 0 where that is not known.

    It waits, nothing transfers and it computes nothing (``within``, ``during``); or it transfers and computes nothing,
    because it is ahead of the last rank, which still computes then (``ahead``).
    """

    def __init__(self, job: JobCollectives | None, ranks: Sequence[RankCommunication | None]) -> None:
        given = {each.rank: each for each in ranks if each is not None}
        self._spans: dict[int, Spans] = {
            rank: spans.intersect(spans_of(total.alone), spans_of(given[rank].exposed))
            for rank, total in waits_of(job).items()
            if rank in given
        }
        split = [m for m in (job.instances if job is not None else ()) if m.waiting_ns is not None]
        self._during = self._of_instances(split, given)
        self._ahead: dict[tuple[int, int], int] = {}
        for m in split:
            transfer = {r.rank: r.exposed_ns - self.during(r.rank, r.position) for r in m.ranks}
            if not m.last_ranks:
                continue
            last = min(transfer[rank] for rank in m.last_ranks)
            self._ahead |= {(r.rank, r.position): transfer[r.rank] - last for r in m.ranks if transfer[r.rank] > last}

    def _of_instances(
        self, split: Sequence[MatchedCollective], given: Mapping[int, RankCommunication]
    ) -> dict[tuple[int, int], int]:
        """By rank and position, what of the waiting in that collective is exposed."""
        mine: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for m in split:
            for part in m.ranks:
                if part.waiting_ns and part.rank in self._spans:
                    own = given[part.rank].collectives[part.position]
                    met = min(own.start_ns + part.waiting_ns, own.end_ns)
                    mine[part.rank].append((part.position, own.start_ns, met))
        found: dict[tuple[int, int], int] = {}
        for rank, parts in mine.items():
            positions, starts, ends = np.array(parts, dtype=np.int64).T
            exposed = spans.measure_within(self._spans[rank], starts, ends).tolist()
            found |= {(rank, at): ns for at, ns in zip(positions.tolist(), exposed, strict=True)}
        return found

    def within(self, rank: int, start_ns: int, end_ns: int) -> int:
        """Exposed waiting in a rank's window, ns."""
        window = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
        return int(spans.measure_within(self._spans.get(rank, spans.EMPTY), *window)[0])

    def during(self, rank: int, position: int) -> int:
        """Exposed waiting of a rank for one of its collectives, ns."""
        return self._during.get((rank, position), 0)

    def of_all(self, instance: MatchedCollective) -> int:
        """Exposed waiting of all ranks for one instance, ns."""
        return sum(self.during(part.rank, part.position) for part in instance.ranks)

    def ahead(self, rank: int, position: int) -> int:
        """Exposed transfer of a rank in one of its collectives beyond the exposed transfer of the rank that came last, ns:
        had that one come in time, computation would cover it."""
        return self._ahead.get((rank, position), 0)

    def ahead_by_rank(self) -> dict[int, int]:
        """The same over all collectives of a rank; those that overlap count each."""
        total: dict[int, int] = defaultdict(int)
        for (rank, _), ns in self._ahead.items():
            total[rank] += ns
        return total
