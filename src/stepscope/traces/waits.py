"""When a rank only waits: it has entered a collective, another rank has not, and none of its own transfers meanwhile.

Span sets as short text, for records: what the edges are from each other, in a unit, seven bits a byte, in base64.

What ranks did on their own between the collectives of a job: how late that can make them, and why.
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import (
    IDLE_CAUSES,
    ExactSpans,
    JobCollectives,
    MatchedCollective,
    OwnTime,
    RankCommunication,
    RankWaiting,
    RankWaitTotal,
)
from stepscope.records.trace_path import CauseShare
from stepscope.stats import spans
from stepscope.stats.spans import EMPTY, Spans, median, union
from stepscope.traces.events import Ints, column


def exact(given: Spans) -> ExactSpans:
    """Pack ``given`` exactly, to the ns."""
    start = int(given.starts[0]) if len(given) else 0
    return ExactSpans(start_ns=start, packed=pack(given, origin=start, unit=1))


def spans_of(given: ExactSpans) -> Spans:
    """The inverse of :func:`exact`."""
    return unpack(given.packed, origin=given.start_ns, unit=1) if given.packed else EMPTY


def pack(given: Spans, *, origin: int, unit: int) -> str:
    """Pack ``given`` as ``records.trace_budget.KindSpans.packed`` has it. Spans shorter than a unit become one unit long.

    Gaps must be 2 units or more, or the unit 1.
    """
    starts = (given.starts - origin + unit // 2) // unit
    ends = np.maximum((given.ends - origin + unit // 2) // unit, starts + 1)
    numbers = np.empty(2 * len(starts), dtype=np.uint64)
    numbers[0::2] = np.concatenate([starts[:1], starts[1:] - ends[:-1]])
    numbers[1::2] = ends - starts
    return base64.b64encode(_leb128_bytes(numbers)).decode()


def unpack(packed: str, *, origin: int, unit: int) -> Spans:
    """The inverse of :func:`pack`, to within a unit."""
    numbers = _leb128_numbers(base64.b64decode(packed))
    edges = np.cumsum(numbers) * unit + origin
    return union(edges[0::2], edges[1::2])


def _leb128_bytes(numbers: NDArray[np.uint64]) -> bytes:
    """Seven bits a byte, lowest first, the top bit set on all but a number's last byte."""
    sizes = np.ones(len(numbers), dtype=np.int64)
    for bits in range(7, 64, 7):
        sizes += numbers >= np.uint64(1 << bits)
    ends = np.cumsum(sizes)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    begins = ends - sizes
    for place in range(int(sizes.max(initial=0))):
        longer = sizes > place
        byte = (numbers[longer] >> np.uint64(7 * place)) & np.uint64(0x7F)
        more = (sizes[longer] > place + 1).astype(np.uint64) << np.uint64(7)
        out[begins[longer] + place] = (byte | more).astype(np.uint8)
    return out.tobytes()


def _leb128_numbers(data: bytes) -> Ints:
    """Read what :func:`_leb128_bytes` wrote."""
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
    instances: Sequence[MatchedCollective], ranks: Mapping[int, RankCommunication]
) -> tuple[RankWaitTotal, ...]:
    """Return what each rank waited, in sum and while nothing transferred, ascending by rank.

    A collective that could not be split counts as transferring from its start to its end.
    """
    parts: dict[int, list[RankWaiting]] = {rank: [] for rank in sorted(ranks)}
    last: dict[int, int] = defaultdict(int)
    for m in instances:
        for wait in m.ranks:
            parts[wait.rank].append(wait)
        if len(m.last_ranks) == 1:
            last[m.last_ranks[0]] += 1
    alone: dict[int, Spans] = {}
    exposed: dict[int, tuple[int, list[int]]] = {}
    for rank, part in parts.items():
        entered, met, left = _entry_full_exit_ns(part, ranks[rank])
        alone[rank] = spans.subtract(spans.union(entered, met), spans.union(met, left))
        waits = spans.intersect(alone[rank], spans_of(ranks[rank].exposed))
        exposed[rank] = waits.measure, _by_call(part, spans.measure_within(waits, entered, met), ranks[rank])
    ahead = _ahead_ns(instances, {rank: by_call for rank, (_, by_call) in exposed.items()})
    return tuple(
        RankWaitTotal(
            rank=rank,
            waiting_ns=sum(wait.waiting_ns or 0 for wait in part),
            times_last=last[rank],
            instances=sum(wait.waiting_ns is not None for wait in part),
            alone=exact(alone[rank]),
            alone_ns=alone[rank].measure,
            exposed_ns=exposed[rank][0],
            exposed_by_call=tuple(exposed[rank][1]),
            ahead_by_call=tuple(ahead[rank]),
        )
        for rank, part in parts.items()
    )


def _entry_full_exit_ns(part: Sequence[RankWaiting], rank: RankCommunication) -> tuple[Ints, Ints, Ints]:
    """Return, on the rank's own clock, when it entered each collective, when all had, and when it left."""
    own = [rank.collectives[wait.position] for wait in part]
    entered = column(own, "start_ns")
    left = column(own, "end_ns")
    waited = np.array([wait.waiting_ns or 0 for wait in part], dtype=np.int64)
    return entered, np.minimum(entered + waited, left), left


def _by_call(part: Sequence[RankWaiting], values: Ints, rank: RankCommunication) -> list[int]:
    by_call = [0] * len(rank.collectives)
    for wait, value in zip(part, values.tolist(), strict=True):
        by_call[wait.position] = value
    return by_call


def _ahead_ns(instances: Sequence[MatchedCollective], waited: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return by rank and call what its transfer takes beyond that of the last rank, ns: it was ahead."""
    ahead = {rank: [0] * len(by_call) for rank, by_call in waited.items()}
    for m in instances:
        if not m.last_ranks:
            continue
        transfer = {r.rank: r.exposed_ns - waited[r.rank][r.position] for r in m.ranks}
        least = min(transfer[rank] for rank in m.last_ranks)
        for r in m.ranks:
            ahead[r.rank][r.position] = max(0, transfer[r.rank] - least)
    return ahead


def waits_of(job: JobCollectives | None) -> dict[int, RankWaitTotal]:
    """Return the totals by rank, for ranks with collectives that could be split; those of the others are not known."""
    return {total.rank: total for total in job.totals if total.instances} if job is not None else {}


def exposed_waits(total: RankWaitTotal, rank: RankCommunication) -> Spans:
    """Return when the rank waits, nothing transfers and it computes nothing, on its own clock."""
    return spans.intersect(spans_of(total.alone), spans_of(rank.exposed))


def exposed_waiting(instance: MatchedCollective, waits: Mapping[int, RankWaitTotal]) -> int:
    """Exposed waiting of all ranks for one instance, ns. waits: as of ``waits_of``."""
    return sum(waits[r.rank].exposed_by_call[r.position] for r in instance.ranks if r.rank in waits)


_KINDS = ("compute", "memory", *IDLE_CAUSES)
_MOSTLY = 0.5


class RankWork:
    """The ranks' work around the split instances. window_ns: of the longest capture."""

    def __init__(self, ranks: Sequence[RankCommunication], split: Sequence[MatchedCollective]) -> None:
        self._ranks = {r.rank: r for r in ranks}
        self.step_count = len({m.step for m in split if m.step is not None})
        self.met = _largest_meetings(split)
        self.window_ns = max((r.window_ns[1] - r.window_ns[0] for r in ranks if r.window_ns is not None), default=0)

    def own_ns(self) -> dict[int, dict[int, float]]:
        """Own time by step and rank, ns: between collectives of any kind, and what it computed beside them; no waiting."""
        totals: dict[int, dict[int, float]] = defaultdict(dict)
        for rank, communication in self._ranks.items():
            places = range(len(communication.collectives))
            begins, ends = self._once(rank, places)
            hidden = (ends - begins - self._exposed(rank, begins, ends)).tolist()
            for c, covered in zip(communication.collectives, hidden, strict=True):
                step = c.step if self.step_count else 0  # without marks the whole capture is one
                if step is not None and not c.own.from_window_start:
                    totals[step][rank] = totals[step].get(rank, 0.0) + c.own.own_ns + covered
        return totals

    def exposed_once(self, rank: int, positions: Sequence[int]) -> list[int]:
        """Return for each, ascending, the ns that neither computation nor a collective before it covers."""
        return list(map(int, self._exposed(rank, *self._once(rank, positions))))

    def _exposed(self, rank: int, begins: Ints, ends: Ints) -> Ints:
        return spans.measure_within(spans_of(self._ranks[rank].exposed), begins, ends)

    def _once(self, rank: int, positions: Sequence[int]) -> tuple[Ints, Ints]:
        """Return start and end of each collective without what those before it cover."""
        chosen = [self._ranks[rank].collectives[i] for i in positions]
        starts = column(chosen, "start_ns")
        ends = column(chosen, "end_ns")
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
        """Return by kind of own time, over these instances, the rank's, the median of the others', and the difference."""
        return _compared_causes(rank, ({r.rank: self._spent(r) for r in m.ranks} for m in instances))

    def own_causes(self, rank: int, peers: Collection[int]) -> tuple[CauseShare, ...]:
        """Return by kind of own time, over all of the rank's collectives, the rank's, the median of its peers', and the
        difference."""
        return _compared_causes(rank, [{r: self._all_spent(r) for r in (rank, *peers)}])

    def _spent(self, part: RankWaiting) -> Counter[str]:
        """Return the ns by kind since its previous collective, and what it computed during that."""
        spent = _by_kind(self._own(part))
        spent["compute"] += self._beside(part)
        return spent

    def _all_spent(self, rank: int) -> Counter[str]:
        """Return what the rank spent in the whole capture by kind, ns."""
        collectives = self._ranks[rank].collectives
        begins, ends = self._once(rank, range(len(collectives)))
        totals = Counter(compute=int((ends - begins - self._exposed(rank, begins, ends)).sum()))
        for c in collectives:
            if not c.own.from_window_start:
                totals.update(_by_kind(c.own))
        return totals

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
        before = self._ranks[part.rank].collectives[part.position - 1]
        return max(before.duration_ns - before.exposed_ns, 0) if part.position else 0

    def _own(self, part: RankWaiting) -> OwnTime:
        return self._ranks[part.rank].collectives[part.position].own


def _by_kind(own: OwnTime) -> Counter[str]:
    return Counter({kind: getattr(own, f"{kind}_ns") for kind in _KINDS})


def _compared_causes(rank: int, rows: Iterable[Mapping[int, Mapping[str, int]]]) -> tuple[CauseShare, ...]:
    """Return by kind the rank's ns in all rows, the median of the others' in each, and the difference, largest first."""
    own_ns, peers_ns = Counter[str](), Counter[str]()
    for row in rows:
        for kind in _KINDS:
            own_ns[kind] += row[rank][kind]
            peers_ns[kind] += round(median([spent[kind] for r, spent in row.items() if r != rank]))
    shares = [
        CauseShare(cause=kind, rank_ns=own_ns[kind], peers_ns=peers_ns[kind], excess_ns=own_ns[kind] - peers_ns[kind])
        for kind in _KINDS
        if own_ns[kind] or peers_ns[kind]
    ]
    return tuple(sorted(shares, key=lambda c: -c.excess_ns))


def _largest_meetings(split: Sequence[MatchedCollective]) -> dict[int, frozenset[int]]:
    """Return for each rank the largest set of ranks that met in one collective, itself among them."""
    largest: dict[int, frozenset[int]] = {}
    for members in {frozenset(r.rank for r in m.ranks) for m in split}:
        for rank in members:
            if len(members) > len(largest.get(rank, ())):
                largest[rank] = members
    return largest
