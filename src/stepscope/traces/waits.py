"""When a rank only waits: it has entered a collective, another rank has not, and none of its own transfers meanwhile.

Span sets as short text, for records: what the edges are from each other, in a unit, seven bits a byte, in base64.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import (
    ExactSpans,
    JobCollectives,
    MatchedCollective,
    RankCommunication,
    RankWaiting,
    RankWaitTotal,
)
from stepscope.stats import spans
from stepscope.stats.spans import EMPTY, Spans, union
from stepscope.traces.events import Ints


def exact(given: Spans) -> ExactSpans:
    """``given`` to the ns."""
    start = int(given.starts[0]) if len(given) else 0
    return ExactSpans(start_ns=start, packed=pack(given, origin=start, unit=1))


def spans_of(given: ExactSpans) -> Spans:
    """The inverse of :func:`exact`."""
    return unpack(given.packed, origin=given.start_ns, unit=1) if given.packed else EMPTY


def pack(given: Spans, *, origin: int, unit: int) -> str:
    """``given`` as ``records.trace_budget.KindSpans.packed``. Spans shorter than a unit become one long.

    Gaps must be 2 units or more, or the unit 1.
    """
    starts = (given.starts - origin + unit // 2) // unit
    ends = np.maximum((given.ends - origin + unit // 2) // unit, starts + 1)
    numbers = np.empty(2 * len(starts), dtype=np.uint64)
    numbers[0::2] = np.concatenate([starts[:1], starts[1:] - ends[:-1]])
    numbers[1::2] = ends - starts
    return base64.b64encode(_leb128(numbers)).decode()


def unpack(packed: str, *, origin: int, unit: int) -> Spans:
    """The inverse of :func:`pack`, to within a unit."""
    numbers = _numbers(base64.b64decode(packed))
    edges = np.cumsum(numbers) * unit + origin
    return union(edges[0::2], edges[1::2])


def _leb128(numbers: NDArray[np.uint64]) -> bytes:
    """Seven bits a byte, lowest first, the top bit set on all but a number's last byte."""
    sizes = np.ones(len(numbers), dtype=np.int64)
    for bits in range(7, 64, 7):
        sizes += numbers >= np.uint64(1 << bits)
    ends = np.cumsum(sizes)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    begins = ends - sizes
    for place in range(int(sizes.max(initial=0))):
        mine = sizes > place
        byte = (numbers[mine] >> np.uint64(7 * place)) & np.uint64(0x7F)
        more = (sizes[mine] > place + 1).astype(np.uint64) << np.uint64(7)
        out[begins[mine] + place] = (byte | more).astype(np.uint8)
    return out.tobytes()


def _numbers(data: bytes) -> Ints:
    """What :func:`_leb128` wrote."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if not len(raw):
        return np.zeros(0, dtype=np.int64)
    last = np.flatnonzero(raw < 0x80)
    begins = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(raw)) - np.repeat(begins, last - begins + 1)
    parts = (raw & 0x7F).astype(np.int64) << (7 * place)
    sums: Ints = np.add.reduceat(parts, begins)
    return sums


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
