"""Which ranks make the others wait, from a table of steps: own time of every rank against the median of the others.

Own time is a step without its exposed communication: what a rank does before it enters the collective (the optimizer's
part delays the one of the next step). Time past the entry is the same on every rank and shows nothing. Of a step with one
collective, the rank that came last timed it without waiting.

A rail is the ranks with the same place on their hosts: they share a slot, a network card, a switch. A host or a rail is
slow as one where nearly all of its ranks are, alike, and nearly no other rank: one bad rank makes no slow host, and a slow
host no slow rail. What is compared are the ranks' levels, medians over all steps: who is last of thousands of ranks in a
single step is noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import comb
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.records.parts import LATE
from stepscope.records.plan import CommOp
from stepscope.stats.compare import LEAST_STEPS, MIN_EXCESS, Excess, chronic_excess, lower_bound
from stepscope.stats.order import mad, mean_interval
from stepscope.stats.step_table import UNKNOWN_HOST, Numbers, StepTable, cell_table, excess_ns, late_parts_ns

if TYPE_CHECKING:
    from stepscope.records.samples import CellResult


Kind = Literal["chronic", "rotating", "one-off"]

MIN_ROTATING = 0.10
"""Median lead of whoever is last over the others. Ranks whose own times scatter by 3% lose 3.4% (2 ranks) to 4.3% (8
ranks) that way: the expected range of normal samples."""

OUTLIER_MADS = 6.0
"""A step in which a rank is further than this above its usual excess is an accident; of normal noise one in 1e9 is."""

HOST_STEPS = 3
"""Steps from which on a host whose every rank comes last in each of them is named."""

HOST_P = 0.001
"""Probability that a host's ranks come last in every step by chance: a small one, as steps beside each other are alike."""

CLEAR_HOST = 4 / 3
"""Where the steps are too few for that: the host's fastest rank takes this many times as long as the slowest other one, by
the lower end of the mean ratio's 95% interval. Of 1800 pairs of ranks in 150 clean cells of 3 steps, on 2 cores with a load
of 12, two lie above 1.25 and none above 1.5 (2026-11)."""

MIN_ONE_OFF = 0.05
"""Share of all step time that such accidents cost together, from which they are worth a word."""

MANY, FALSE = 16, 0.001
"""Ranks from which on a slow one has to stand out of how much ranks differ anyway, and the probability that one of all that
are alike does: of thousands of ranks the last is late by chance."""

PARTS = tuple(LATE)


def typical_ns(table: StepTable) -> float:
    """Return the median own time over ranks and steps."""
    return float(np.median(table.own_ns))


def excess_fractions(table: StepTable) -> tuple[float, ...]:
    """Return for each rank the median over steps of its own time beyond the others', as a share of theirs; 0 where they
    take none."""
    excess = excess_ns(table)
    others = np.median(table.own_ns - excess, axis=1)
    middles = np.median(excess, axis=1)
    return tuple(float(ns / of) if of > 0 else 0.0 for ns, of in zip(middles, others, strict=True))


@record
class RankTimes:
    """Times of a rank over the steps: its own, what it takes beyond the others, how long it waits for the last of them."""

    own_ns_median: float
    own_ns_p90: float
    excess_ns_median: float
    excess_fraction: float
    waiting_ns_median: float


def rank_times(table: StepTable, rank: int) -> RankTimes:
    """Return the times of one rank; at least 2 ranks."""
    own = table.own_ns[rank]
    return RankTimes(
        own_ns_median=float(np.median(own)),
        own_ns_p90=float(np.quantile(own, 0.9)),
        excess_ns_median=float(np.median(excess_ns(table)[rank])),
        excess_fraction=excess_fractions(table)[rank],
        waiting_ns_median=float(np.median(table.waiting_ns[rank])),
    )


@record
class Slow:
    """A rank that the others wait for; ``rank`` None: who it is changes (rotating).

    excess_ns: median over steps of its own time beyond the others' median (one-off: of the steps in question; rotating:
    of whoever is last); low_ns: lower end of the block bootstrap's 95% interval (below 20 steps the least of a step), None
    for one-offs. others_ns: the others' own time. late_steps: in how many of ``steps`` it is beyond the ratio. part: where
    most of the excess is spent, with how much (ns); None: no part stands out. stake_fraction: of all step time. of: what is
    slow as one, of which this is a rank. rail: its place on its host; None: not known.
    """

    kind: Kind
    rank: int | None
    host: str | None
    excess_ns: float
    low_ns: float | None
    others_ns: float
    late_steps: int
    steps: int
    part: str | None
    part_ns: float | None
    samples_ratio: float | None
    stake_fraction: float
    of: Literal["rank", "host", "rail"] = "rank"
    rail: int | None = None

    @property
    def about(self) -> tuple[str, str | int | None]:
        """What the finding is about: the same for all ranks of a host, or of a rail, that is slow as one."""
        shared: dict[str, str | int | None] = {"rank": self.rank, "host": self.host, "rail": self.rail}
        return self.of if self.kind == "chronic" else self.kind, shared[self.of]


def comparable_ranks(cell: CellResult) -> StepTable | None:
    """Return the steps of a cell whose ranks do the same; None for one rank, or where ranks have no timed step in common.

    None for a pipeline, too: its ranks wait for messages all through a step.
    """
    if cell.spec.mesh.get("pp", 1) > 1 or cell.spec.world_size < 2:
        return None
    return cell_table(cell)


def slow_ranks(table: StepTable) -> tuple[Slow, ...]:
    """Return the ranks that the others wait for, costliest first: chronic ones; where there is none, rotating ones, then
    accidents.

    A rank is slow when the median of its excess over at least 20 steps is more than 5% of the others' own time, and the
    block bootstrap's lower bound of that median lies above 0; of many ranks it also stands out of how much they differ. All
    ranks of a host, or of a rail, are when they are slow as one (``slow_groups``); below 20 steps those of a host alone,
    from 3 steps on, where they come last in every step.
    """
    groups = _of_slow_groups(table)
    chronic = list((groups | _chronic_ranks(table, groups)).values())
    if chronic or table.steps < LEAST_STEPS:
        return tuple(sorted(chronic, key=lambda slow: -slow.stake_fraction))
    rotating = _rotating_rank(table)
    return (rotating,) if rotating is not None else _single_slow_steps(table)


def _chronic_ranks(table: StepTable, of_groups: Mapping[int, Slow]) -> dict[int, Slow]:
    """Return the ranks that are slow by themselves, beside those of groups (``of_groups``)."""
    levels = np.median(excess_ns(table), axis=1)
    likely = levels > MIN_EXCESS * np.median(table.own_ns - excess_ns(table), axis=1)
    if table.ranks >= MANY:
        alone = np.delete(levels, list(of_groups))
        likely &= levels > np.median(alone) + mad(alone) * NormalDist().inv_cdf(1 - FALSE / table.ranks)
    slow_by_rank = {}
    middles = _parts_medians_ns(table)
    for rank in (set(np.flatnonzero(likely).tolist()) - of_groups.keys()) if table.steps >= LEAST_STEPS else ():
        excess = excess_ns(table)[rank]
        others = table.own_ns[rank] - excess
        slow = chronic_excess(excess, others)
        if slow is not None:
            slow_by_rank[rank] = _chronic_rank(
                table, rank, slow, excess, others, parts=_parts_beyond_ns(table, rank, middles=middles)
            )
    return slow_by_rank


def _of_slow_groups(table: StepTable) -> dict[int, Slow]:
    """Return every rank of a host, or of a rail, that is slow as one; a rank of both counts as of its host."""
    if table.steps < LEAST_STEPS:
        return _of_slow_hosts(table) if table.steps >= HOST_STEPS else {}
    slow_by_rank: dict[int, Slow] = {}
    for group in slow_groups(table.own_ns, table.hosts):
        slow_by_rank = _ranks_of_slow_group(table, group) | slow_by_rank
    return slow_by_rank


def _ranks_of_slow_group(table: StepTable, group: SlowGroup) -> dict[int, Slow]:
    """Return the ranks of a slow group, each with what it takes beyond the ranks outside."""
    middles = np.median(np.delete(late_parts_ns(table), group.members, axis=1), axis=1)
    slow_by_rank = {}
    for rank in group.members:
        excess = table.own_ns[rank] - group.middle_ns
        slow = replace(group.excess, excess_ns=float(np.median(excess)))
        parts = _parts_beyond_ns(table, rank, middles=middles)
        slow_by_rank[rank] = _chronic_rank(table, rank, slow, excess, group.middle_ns, parts=parts, of=group.kind)
    return slow_by_rank


def _of_slow_hosts(table: StepTable) -> dict[int, Slow]:
    """Return, from few steps, every rank of a host whose fastest rank comes after the slowest of all other hosts' ranks."""
    slow_by_rank = {}
    for host in sorted(set(table.hosts) - {UNKNOWN_HOST}):
        on_host = np.array([name == host for name in table.hosts])
        if on_host.all():
            continue
        rest = table.own_ns[~on_host]
        if _always_last(table.own_ns[on_host].min(axis=0), rest, int(on_host.sum())):
            middle = np.median(rest, axis=0)
            for rank in np.flatnonzero(on_host).tolist():
                excess = table.own_ns[rank] - middle
                slow = Excess(
                    excess_ns=float(np.median(excess)),
                    low_ns=float(excess.min()),
                    others_ns=float(np.median(middle)),
                )
                slow_by_rank[rank] = _chronic_rank(
                    table, rank, slow, excess, middle, parts=_parts_beyond_ns(table, rank), of="host"
                )
    return slow_by_rank


def _always_last(fastest: Numbers, rest: Numbers, ranks: int) -> bool:
    """Whether a host of ``ranks`` ranks comes last in every step, beyond chance. fastest: the own time of its fastest rank
    [steps]; rest: those of the other hosts' ranks [ranks, steps]."""
    count, steps = ranks + rest.shape[0], fastest.size
    slowest = rest.max(axis=0)
    if (fastest <= slowest).any() or np.median(fastest - slowest) <= MIN_ROTATING * np.median(rest):
        return False
    ratio = mean_interval(np.log(fastest / np.maximum(slowest, 1.0)))
    clear = ratio is not None and ratio[0] > np.log(CLEAR_HOST)
    return bool(clear) or count / ranks / comb(count, ranks) ** steps < HOST_P


def _chronic_rank(
    table: StepTable,
    rank: int,
    slow: Excess,
    excess: Numbers,
    others: Numbers,
    *,
    parts: Numbers,
    of: Literal["rank", "host", "rail"] = "rank",
) -> Slow:
    """Describe a chronically slow rank. parts: what each of ``PARTS`` takes beyond the others'."""
    part, part_ns = _main_part_and_ns(parts, slow.excess_ns)
    rest = 0.0 if table.samples is None else float(np.median(np.delete(table.samples, rank)))
    return Slow(
        kind="chronic",
        rank=rank,
        host=table.hosts[rank],
        excess_ns=slow.excess_ns,
        low_ns=slow.low_ns,
        others_ns=slow.others_ns,
        late_steps=int((excess > MIN_EXCESS * others).sum()),
        steps=table.steps,
        part=part,
        part_ns=part_ns,
        samples_ratio=float(table.samples[rank]) / rest if table.samples is not None and rest > 0 else None,
        stake_fraction=min(1.0, slow.excess_ns / float(np.median(table.step_ns))),
        of=of,
        rail=rails_of(table.hosts)[rank],
    )


def _rotating_rank(table: StepTable) -> Slow | None:
    """Return the slowness that moves from rank to rank; None where it costs too little."""
    lead = np.asarray(excess_ns(table).max(axis=0))
    middle, typical = float(np.median(lead)), typical_ns(table)
    if middle <= MIN_ROTATING * typical:
        return None
    low = lower_bound(lead)
    if low is None or low <= MIN_EXCESS * typical:
        return None
    return Slow(
        kind="rotating",
        rank=None,
        host=None,
        excess_ns=middle,
        low_ns=low,
        others_ns=typical,
        late_steps=int((lead > MIN_ROTATING * typical).sum()),
        steps=table.steps,
        part=None,
        part_ns=None,
        samples_ratio=None,
        stake_fraction=min(1.0, middle / float(np.median(table.step_ns))),
    )


def _single_slow_steps(table: StepTable) -> tuple[Slow, ...]:
    """Return single steps in which one rank was far beyond its usual, by rank; empty unless they cost enough together."""
    middle = np.median(excess_ns(table), axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(excess_ns(table) - middle), axis=1, keepdims=True)
    odd = (excess_ns(table) > middle + OUTLIER_MADS * spread) & (
        excess_ns(table) > 0.5 * (table.own_ns - excess_ns(table))
    )
    last = odd & (excess_ns(table) == excess_ns(table).max(axis=0))
    total = float(table.step_ns.sum())
    if float(excess_ns(table)[last].sum()) <= MIN_ONE_OFF * total:
        return ()
    counts = Counter({rank: int(last[rank].sum()) for rank in range(table.ranks) if last[rank].any()})
    accidents = []
    middles = _parts_medians_ns(table)
    for rank, count in counts.items():
        which = last[rank]
        excess = excess_ns(table)[rank][which]
        usual = float(np.median(excess))
        part, part_ns = _main_part_and_ns(_parts_beyond_ns(table, rank, which, middles=middles), usual)
        accidents.append(
            Slow(
                kind="one-off",
                rank=rank,
                host=table.hosts[rank],
                excess_ns=usual,
                low_ns=None,
                others_ns=float(np.median((table.own_ns - excess_ns(table))[rank])),
                late_steps=count,
                steps=table.steps,
                part=part,
                part_ns=part_ns,
                samples_ratio=None,
                stake_fraction=float(excess.sum()) / total,
            )
        )
    return tuple(sorted(accidents, key=lambda slow: -slow.stake_fraction))


def _parts_medians_ns(table: StepTable) -> Numbers | None:
    """Return the median of all ranks, ns [parts, steps], where they are so many that none of them moves it; else None."""
    return np.asarray(np.median(late_parts_ns(table), axis=1)) if table.ranks >= MANY else None


def _parts_beyond_ns(
    table: StepTable, rank: int, which: NDArray[np.bool_] | slice = slice(None), *, middles: Numbers | None = None
) -> Numbers:
    """Return what a rank takes beyond ``middles`` in the median of these steps, ns [parts]; without them, beyond the other
    ranks' medians."""
    if middles is None:
        middles = np.median(np.delete(late_parts_ns(table), rank, axis=1), axis=1)
    return np.asarray(np.median((late_parts_ns(table)[:, rank] - middles)[:, which], axis=1))


def _main_part_and_ns(beyond_ns: Numbers, excess_ns: float) -> tuple[str | None, float | None]:
    """Return the part of the step that holds at least half of the excess, and its ns; (None, None) without one."""
    at = int(np.argmax(beyond_ns))
    return (PARTS[at], float(beyond_ns[at])) if beyond_ns[at] >= 0.5 * excess_ns else (None, None)


@record
class StepCollective:
    """A collective that is a step's whole plan. time_ns: median over the steps; p90_ns: 90% quantile of them. busbw: as
    nccl-tests counts it."""

    op: str
    size_bytes: int
    time_ns: float
    p90_ns: float
    busbw_bytes_per_s: float

    @property
    def tail(self) -> float:
        """Ratio of p90 to the median."""
        return self.p90_ns / self.time_ns


def step_collective(plan: Sequence[CommOp], table: StepTable) -> StepCollective | None:
    """Return the collective of a step whose ``plan`` is that one alone, with nothing that overlaps; None: it has another
    plan, or took no time."""
    from stepscope.collectives import REGISTRY as COLLECTIVES

    if len(plan) != 1:
        return None
    op = plan[0]
    net = table.transfer_ns
    time_ns = float(np.median(net))
    if time_ns <= 0:
        return None
    factor = COLLECTIVES.load(op.op).bus_factor(table.ranks)
    return StepCollective(
        op=op.op,
        size_bytes=op.size_bytes,
        time_ns=time_ns,
        p90_ns=float(np.quantile(net, 0.9)),
        busbw_bytes_per_s=op.size_bytes / time_ns * 1e9 * factor,
    )


NEARLY_ALL = 0.9
"""Share of a group's ranks, and of the others, that counts: what single ranks do otherwise (one that is slower still) hides
no group."""

ALIKE = 0.5
"""Share of a group's excess that nearly all of its ranks have at least."""


@record
class SlowGroup:
    """Ranks that are slow as one. kind: what they share. members: their rows. middle_ns: [steps], median own time of the
    ranks outside of it."""

    kind: Literal["host", "rail"]
    members: tuple[int, ...]
    excess: Excess
    middle_ns: Numbers


@lru_cache(maxsize=4)
def rails_of(hosts: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return each rank's place among those of its host, which launchers count as its local rank; None: the host is not
    known."""
    counts: dict[str, int] = {}
    rails: list[int | None] = []
    for host in hosts:
        rails.append(None if host == UNKNOWN_HOST else counts.get(host, 0))
        counts[host] = counts.get(host, 0) + 1
    return tuple(rails)


def slow_groups(own_ns: Numbers, hosts: tuple[str, ...]) -> tuple[SlowGroup, ...]:
    """Return the hosts and rails of two ranks or more that are slow as one, from own times [ranks, steps] of at least 20
    steps.

    Slow is a group whose median rank exceeds that of the others, over the steps, as ``chronic_excess`` says of a rank; of
    whose ranks nearly all have ALIKE of that excess; and nearly all of the others are faster than nearly all of it. Others
    that are such a group themselves, and share no rank with it, do not count there.
    """
    levels = np.median(own_ns - np.median(own_ns, axis=0), axis=1)
    least = MIN_EXCESS * float(np.median(own_ns))
    likely = []
    for kind, members in _rank_groups(hosts):
        inside = np.zeros(levels.size, dtype=bool)
        inside[members] = True
        excess = float(np.median(levels[inside]) - np.median(levels[~inside]))
        if excess > least and _nearly_least(levels[inside]) - np.median(levels[~inside]) >= ALIKE * excess:
            likely.append((kind, inside))
    groups = []
    for kind, inside in likely:
        others = ~inside
        for _, theirs in likely:
            if not (theirs & inside).any():
                others &= ~theirs
        if not others.any() or _nearly_least(levels[inside]) <= -_nearly_least(-levels[others]):
            continue
        middle = np.median(own_ns[others], axis=0)
        excess_of = chronic_excess(np.median(own_ns[inside], axis=0) - middle, middle)
        if excess_of is not None:
            groups.append(
                SlowGroup(
                    kind=kind,
                    members=tuple(np.flatnonzero(inside).tolist()),
                    excess=excess_of,
                    middle_ns=np.asarray(middle),
                )
            )
    return tuple(groups)


def _nearly_least(levels: Numbers) -> float:
    """Return what nearly all exceed or reach; of fewer than ten the least."""
    return float(np.quantile(levels, 1 - NEARLY_ALL, method="lower"))


def _rank_groups(hosts: tuple[str, ...]) -> Iterator[tuple[Literal["host", "rail"], list[int]]]:
    """Yield ranks that share a host, then those that share a rail; no group of one rank, and none that is all ranks."""
    rails = rails_of(hosts)
    placed = [rank for rank, rail in enumerate(rails) if rail is not None]
    for members in grouped(placed, lambda rank: hosts[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "host", members
    for members in grouped(placed, lambda rank: rails[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "rail", members
