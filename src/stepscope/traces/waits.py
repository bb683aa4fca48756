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
    """When each rank waits, nothing transfers and it computes nothing, on its own clock."""

    def __init__(self, job: JobCollectives | None, ranks: Sequence[RankCommunication | None]) -> None:
        self._ranks = {each.rank: each for each in ranks if each is not None}
        self._spans: dict[int, Spans] = {
            rank: spans.intersect(spans_of(total.alone), spans_of(self._ranks[rank].exposed))
            for rank, total in waits_of(job).items()
            if rank in self._ranks
        }
        self._waiting = {
            (part.rank, part.position): part.waiting_ns
            for instance in (job.instances if job is not None else ())
            for part in instance.ranks
            if part.waiting_ns and part.rank in self._spans
        }

    def within(self, rank: int, start_ns: int, end_ns: int) -> int:
        """How much of these times lies in a rank's window, ns; 0 where it is not known."""
        window = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
        return int(spans.measure_within(self._spans.get(rank, spans.EMPTY), *window)[0])

    def during(self, rank: int, position: int) -> int:
        """How much lies in the rank's waiting for one of its collectives, ns."""
        own = self._ranks[rank].collectives[position]
        waiting_ns = self._waiting.get((rank, position), 0)
        return self.within(rank, own.start_ns, min(own.start_ns + waiting_ns, own.end_ns))

    def of_all(self, instance: MatchedCollective) -> int:
        """Of all ranks in one instance, ns."""
        return sum(self.during(part.rank, part.position) for part in instance.ranks)
