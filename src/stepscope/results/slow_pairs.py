"""Which links between ranks are slower than their like, and whether one host's way out or in explains them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.comm import CommRow
from stepscope.results.labels import cells_of

Pair = tuple[int, int]
Direction = Literal["egress", "ingress", "both"]

SLOW = math.sqrt(2)
"""A pair is slow from this multiple of its like's time on: half way, in ratio, between equal and half the rate.

Links degrade by halves (PCIe x16 to x8 or one generation down, 100 to 50 Gbit/s, one rail of two lost), and what a fault
costs is 2x and more, while clean pairs lie within a few percent of each other (0.120 to 0.125 GB/s over 12 pairs of 4
shaped hosts, 2026-11).
"""

SCALES = 6.0
"""A pair is slow also only from this many standard deviations of the like's own scatter on, whichever is more: with normal
scatter fewer than one clean pair in 10^8 lies that far out; heavier tails are why it is not less. Over the pairs of one rank
scatter averages out, and few pairs know their own scatter badly: see :func:`_slow_ratio_limit`."""

EXPLAINED = 0.75
"""A host's way out (in) is slow when this share of its pairs in that direction is slow: one in four may be missed."""

MIN_PAIRS = 4
"""Fewest pairs of one kind that can be compared: below it, the typical pair is the suspect itself."""

_DIRECTIONS: tuple[Direction, ...] = ("egress", "ingress", "both")

_HALF_NORMAL_MAD = 0.3991
"""MAD of the fastest half of a normal sample about its own median, in standard deviations."""


@record
class SlowPair:
    """One slow measurement. ratio: its time / ``typical_ns``, the lower quartile of the pairs of its kind and size.

    explained: by a slow end. confirmed: seen in more than one measurement of this pair (another size, both directions
    at once), or explained.
    """

    peer: Pair
    size_bytes: int
    bidirectional: bool
    time_ns: float
    typical_ns: float
    ratio: float
    path: str
    explained: bool = False
    confirmed: bool = False


@record
class SlowEnd:
    """A rank, or a host with all its ranks, whose pairs are slow one way or both. ratio: median over the slow pairs.

    both: out and in, or (where only both directions at once were measured) not told apart.
    """

    host: str | None
    ranks: tuple[int, ...]
    direction: Direction
    ratio: float
    slow: int
    of: int


@record
class PairsVerdict:
    """What the pairs of one cell show. compared: measurements that had enough like them; unavailable: why none had."""

    cell_id: str
    world_size: int
    compared: int
    pairs: tuple[SlowPair, ...] = ()
    ends: tuple[SlowEnd, ...] = ()
    unavailable: str | None = None


def slow_pairs(rows: Sequence[CommRow]) -> tuple[PairsVerdict, ...]:
    """Return a verdict for each cell of kind ``pairs``.

    Pairs are compared with those of the same size, direction and path: whether they share a host, where the rows know it.
    The time compared is the smallest of a pair's calls, because disturbances only ever add to it, and the reference is the
    lower quartile over pairs, which stays clean while fewer than three in four are slow.
    """
    return tuple(_cell_verdict(cell_id, cell) for cell_id, cell in cells_of(rows, "pairs").items())


@record
class _Compared:
    """One pair in one measurement, against its like. scatter: standard deviation of the like's log(time), from count."""

    time_ns: float
    typical_ns: float
    scatter: float
    count: int
    path: str

    @property
    def ratio(self) -> float:
        return self.time_ns / self.typical_ns


Measurements = Mapping[tuple[int, bool], Mapping[Pair, _Compared]]
"""Measurements by size and whether both directions ran at once."""


def _cell_verdict(cell_id: str, rows: Sequence[CommRow]) -> PairsVerdict:
    """Return which pairs and ends of a cell are slow, or why nothing was compared."""
    world = rows[0].world_size
    hosts = max((row.rank_hosts for row in rows), key=len)
    kinds: dict[tuple[int, bool, str], dict[Pair, float]] = defaultdict(dict)
    for row in rows:
        if row.peer is not None and row.size_bytes is not None and row.time_ns_min and row.status == "ok":
            path = _pair_path(row.peer, hosts)
            kinds[row.size_bytes, row.bidirectional, path][row.peer] = row.time_ns_min
    measured = _pair_measurements(kinds)
    if not measured:
        return PairsVerdict(cell_id=cell_id, world_size=world, compared=0, unavailable=_why_not(kinds, world))
    ends = _slow_ends(measured, hosts, world)
    return PairsVerdict(
        cell_id=cell_id,
        world_size=world,
        compared=sum(map(len, measured.values())),
        pairs=_slow_pairs_of(measured, ends),
        ends=ends,
    )


def _pair_measurements(kinds: Mapping[tuple[int, bool, str], Mapping[Pair, float]]) -> Measurements:
    """Compare every pair that has enough like it."""
    measured: dict[tuple[int, bool], dict[Pair, _Compared]] = defaultdict(dict)
    for (size, both, path), times in kinds.items():
        if len(times) < MIN_PAIRS:
            continue
        typical, scatter = _typical_and_scatter(list(times.values()))
        for pair, time in times.items():
            measured[size, both][pair] = _Compared(
                time_ns=time, typical_ns=typical, scatter=scatter, count=len(times), path=path
            )
    return measured


def _typical_and_scatter(times: Sequence[float]) -> tuple[float, float]:
    """Return the typical time of pairs that should be alike, and the standard deviation of its logarithm.

    Both from the fastest half alone, so that slow pairs do not excuse themselves.
    """
    ordered = sorted(math.log(time) for time in times)
    fast = ordered[: max(2, (len(ordered) + 1) // 2)]
    middle = statistics.median(fast)
    return math.exp(middle), statistics.median(abs(x - middle) for x in fast) / _HALF_NORMAL_MAD


def _slow_ratio_limit(scatter: float, count: int, *, pairs: int = 1) -> float:
    """Return the ratio from which on one pair, or most of the ``pairs`` of a rank, is slow.

    The median of k values scatters 1.25 / sqrt(k) times as much as one. The scatter itself is known from half of ``count``
    values only; the factor for that keeps clean noise quiet where they are few. Simulated with log-normal noise and 5% of
    the pairs 1.5 to 4 times slower for once: of 4 and 8 ranks one is named in less than 0.5% of the runs; of 3 ranks in 1%
    up to 10% noise and 6% at 60%. A way out that is 2 times slow is always found among 8 at 10% noise, and in half of the
    runs at 20%.
    """
    unsure = 1 + 6 / count
    averaged = 1.0 if pairs == 1 else min(1.0, 1.25 / math.sqrt(pairs))
    return max(SLOW, math.exp(SCALES * unsure * averaged * scatter))


def _pair_path(peer: Pair, hosts: Sequence[str]) -> str:
    if max(peer) >= len(hosts):
        return ""
    return "same host" if hosts[peer[0]] == hosts[peer[1]] else "between hosts"


def _why_not(kinds: Mapping[tuple[int, bool, str], Mapping[Pair, float]], world: int) -> str:
    if not kinds:
        return "no pair gave a result"
    most = max(map(len, kinds.values()))
    return f"{world} ranks have at most {most} similar pairs; naming a slow pair needs {MIN_PAIRS}"


def _slow_ends(measured: Measurements, hosts: Sequence[str], world: int) -> tuple[SlowEnd, ...]:
    """Return slow ends: hosts first (all their ranks together), then single ranks of hosts that are not slow as a whole.

    An end is named from one direction at a time where that was measured: it tells the way out from the way in.
    """
    used = {kind: pairs for kind, pairs in measured.items() if not kind[1]} or measured
    together: dict[str, tuple[int, ...]] = {}
    for rank, host in enumerate(hosts):
        together[host] = (*together.get(host, ()), rank)
    shared = len(hosts) == world and 1 < len(together) < world
    named = _slow_units(list(together.values()), used, hosts, again=measured) if shared else []
    covered = {rank for end in named for rank in end.ranks}
    single = _slow_units([(rank,) for rank in range(world)], used, hosts, again=measured)
    named += [end for end in single if not covered.intersection(end.ranks)]
    return tuple(sorted(named, key=lambda end: -end.ratio))


def _slow_units(
    units: Sequence[tuple[int, ...]],
    measured: Measurements,
    hosts: Sequence[str],
    *,
    again: Measurements,
) -> list[SlowEnd]:
    """Return the units (ranks that share a way out and in) most of whose pairs with other units are slow at some size.

    A rate shows at large sizes, a delay at small ones. One pair alone is a link, not an end. again: everything measured;
    where a size was also measured both ways at once, most of the unit's pairs must be slow there, too: that was at another
    time, and what disturbed a host for a moment (8 ranks on 2 cores: 2 of 20 clean runs) is not seen twice.
    """
    unit_of = {rank: number for number, ranks in enumerate(units) for rank in ranks}
    sides: dict[tuple[int, Direction], tuple[float, int, int]] = {}
    for (size, both), pairs in measured.items():
        by_side: dict[tuple[int, Direction], list[_Compared]] = defaultdict(list)
        for pair, compared in pairs.items():
            sender, receiver = unit_of[pair[0]], unit_of[pair[1]]
            if sender != receiver:
                by_side[sender, "both" if both else "egress"].append(compared)
                by_side[receiver, "both" if both else "ingress"].append(compared)
        for side, its in by_side.items():
            slow = _slow_ratios(its)
            confirmed = both or _slow_both_ways(side[0], unit_of, again.get((size, True)))
            if confirmed and len(slow) >= 2 and len(slow) >= EXPLAINED * len(its):
                seen = (statistics.median(slow), len(slow), len(its))
                sides[side] = max(seen, sides.get(side, seen))
    ends = []
    for number, ranks in enumerate(units):
        slow_sides = [(way, sides[number, way]) for way in _DIRECTIONS if (number, way) in sides]
        if slow_sides:
            ends.append(
                SlowEnd(
                    host=hosts[ranks[0]] if ranks[0] < len(hosts) else None,
                    ranks=ranks,
                    direction=slow_sides[0][0] if len(slow_sides) == 1 else "both",
                    ratio=max(ratio for _, (ratio, _, _) in slow_sides),
                    slow=sum(slow for _, (_, slow, _) in slow_sides),
                    of=sum(of for _, (_, _, of) in slow_sides),
                )
            )
    return ends


def _slow_ratios(pairs: Sequence[_Compared]) -> list[float]:
    """Return the ratios of those pairs of one unit that count as slow among ``pairs``."""
    limit = max(_slow_ratio_limit(c.scatter, c.count, pairs=len(pairs)) for c in pairs)
    return [c.ratio for c in pairs if c.ratio > limit]


def _slow_both_ways(unit: int, unit_of: Mapping[int, int], pairs: Mapping[Pair, _Compared] | None) -> bool:
    """Whether most pairs of ``unit`` are slow in this measurement, too; True when there is none."""
    its = [
        compared
        for (a, b), compared in (pairs or {}).items()
        if unit in (unit_of[a], unit_of[b]) and unit_of[a] != unit_of[b]
    ]
    return not its or len(_slow_ratios(its)) >= EXPLAINED * len(its)


def _slow_pairs_of(measured: Measurements, ends: Sequence[SlowEnd]) -> tuple[SlowPair, ...]:
    """Return slow pairs, worst first, with what explains and confirms them. Of a slow end all that take SLOW times as
    long."""
    suspects = []
    for (size, both), pairs in measured.items():
        for pair, compared in pairs.items():
            explained = any(_end_explains_pair(end, pair, both=both) for end in ends)
            limit = SLOW if explained else _slow_ratio_limit(compared.scatter, compared.count)
            if compared.ratio > limit:
                suspects.append(
                    SlowPair(
                        peer=pair,
                        size_bytes=size,
                        bidirectional=both,
                        time_ns=compared.time_ns,
                        typical_ns=compared.typical_ns,
                        ratio=compared.ratio,
                        path=compared.path,
                        explained=explained,
                    )
                )
    seen: dict[frozenset[int], int] = defaultdict(int)
    for one in suspects:
        seen[frozenset(one.peer)] += 1
    judged = (replace(p, confirmed=p.explained or seen[frozenset(p.peer)] > 1) for p in suspects)
    return tuple(sorted(judged, key=lambda p: (-p.ratio, p.peer)))


def _end_explains_pair(end: SlowEnd, pair: Pair, *, both: bool) -> bool:
    """Whether a pair is slow because this end is. both: whatever the direction."""
    out, into = pair[0] in end.ranks, pair[1] in end.ranks
    if out == into:
        return False
    if both or end.direction == "both":
        return True
    return out if end.direction == "egress" else into
