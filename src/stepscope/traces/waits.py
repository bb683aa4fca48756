"""When a rank only waits: it has entered a collective, another rank has not, and none of its own transfers meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import (
    JobCollectives,
    MatchedCollective,
    RankCommunication,
    RankWaiting,
    RankWaitTotal,
)
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.packed_spans import exact, spans_of

Ints = NDArray[np.int64]


def wait_totals(
    found: Sequence[MatchedCollective], ranks: Mapping[int, RankCommunication]
) -> tuple[RankWaitTotal, ...]:
    """By rank, ascending: what it waited, in sum and while nothing transferred.

    A collective that could not be split counts as transferring from its start to its end.
    """
    parts: dict[int, list[RankWaiting]] = {rank: [] for rank in sorted(ranks)}
    last: dict[int, int] = defaultdict(int)
    for m in found:
        for each in m.ranks:
            parts[each.rank].append(each)
        if len(m.last_ranks) == 1:
            last[m.last_ranks[0]] += 1
    alone: dict[int, Spans] = {}
    exposed: dict[int, tuple[int, list[int]]] = {}
    for rank, mine in parts.items():
        entered, met, left = _times(mine, ranks[rank])
        alone[rank] = spans.subtract(spans.union(entered, met), spans.union(met, left))
        waits = spans.intersect(alone[rank], spans_of(ranks[rank].exposed))
        exposed[rank] = waits.measure, _by_call(mine, spans.measure_within(waits, entered, met), ranks[rank])
    ahead = _ahead(found, {rank: by_call for rank, (_, by_call) in exposed.items()})
    return tuple(
        RankWaitTotal(
            rank=rank,
            waiting_ns=sum(each.waiting_ns or 0 for each in mine),
            times_last=last[rank],
            instances=sum(each.waiting_ns is not None for each in mine),
            alone=exact(alone[rank]),
            alone_ns=alone[rank].measure,
            exposed_ns=exposed[rank][0],
            exposed_by_call=tuple(exposed[rank][1]),
            ahead_by_call=tuple(ahead[rank]),
        )
        for rank, mine in parts.items()
    )


def _times(mine: Sequence[RankWaiting], rank: RankCommunication) -> tuple[Ints, Ints, Ints]:
    """On the rank's own clock: when it entered each, when all had, and when it left."""
    own = [rank.collectives[each.position] for each in mine]
    entered = np.array([c.start_ns for c in own], dtype=np.int64)
    left = np.array([c.end_ns for c in own], dtype=np.int64)
    waited = np.array([each.waiting_ns or 0 for each in mine], dtype=np.int64)
    return entered, np.minimum(entered + waited, left), left


def _by_call(mine: Sequence[RankWaiting], values: Ints, rank: RankCommunication) -> list[int]:
    found = [0] * len(rank.collectives)
    for each, value in zip(mine, values.tolist(), strict=True):
        found[each.position] = value
    return found


def _ahead(found: Sequence[MatchedCollective], waited: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    ahead = {rank: [0] * len(by_call) for rank, by_call in waited.items()}
    for m in found:
        if not m.last_ranks:
            continue
        transfer = {r.rank: r.exposed_ns - waited[r.rank][r.position] for r in m.ranks}
        least = min(transfer[rank] for rank in m.last_ranks)
        for r in m.ranks:
            ahead[r.rank][r.position] = max(0, transfer[r.rank] - least)
    return ahead


def waits_of(job: JobCollectives | None) -> dict[int, RankWaitTotal]:
    """The totals by rank, of ranks with collectives that could be split: of the others it is not known."""
    return {total.rank: total for total in job.totals if total.instances} if job is not None else {}


def exposed_waits(total: RankWaitTotal, rank: RankCommunication) -> Spans:
    """When the rank waits, nothing transfers and it computes nothing, on its own clock."""
    return spans.intersect(spans_of(total.alone), spans_of(rank.exposed))


def exposed_waiting(instance: MatchedCollective, waits: Mapping[int, RankWaitTotal]) -> int:
    """Exposed waiting of all ranks for one instance, ns. waits: as of ``waits_of``."""
    return sum(waits[r.rank].exposed_by_call[r.position] for r in instance.ranks if r.rank in waits)
