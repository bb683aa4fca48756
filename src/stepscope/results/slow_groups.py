"""Whole hosts and rails that are slow, told apart from single slow ranks.

A rail is the ranks with the same place on their hosts: they share a slot, a network card, a switch. A group is slow as
one where nearly all of its ranks are, alike, and nearly no other rank: one bad rank makes no slow host, and a slow host
no slow rail. What is compared are the ranks' levels, medians over all steps: who is last of thousands of ranks in a single
step is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.words import grouped
from stepscope.stats.compare import MIN_EXCESS, Excess, chronic_excess

Floats = NDArray[np.float64]

UNKNOWN_HOST = "?"

NEARLY_ALL = 0.9
"""Of a group's ranks, and of the others: what single ranks do otherwise (one that is slower still) hides no group."""

ALIKE = 0.5
"""Of a group's excess: what nearly all of its ranks have at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """kind: of what the ranks share. members: rows. middle_ns: [steps], median own time of the ranks outside of it."""

    kind: Literal["host", "rail"]
    members: tuple[int, ...]
    excess: Excess
    middle_ns: Floats


@lru_cache(maxsize=4)
def rails_of(hosts: tuple[str, ...]) -> tuple[int | None, ...]:
    """Each rank's place among those of its host, which launchers count as its local rank; None: the host is not known."""
    counts: dict[str, int] = {}
    found: list[int | None] = []
    for host in hosts:
        found.append(None if host == UNKNOWN_HOST else counts.get(host, 0))
        counts[host] = counts.get(host, 0) + 1
    return tuple(found)


def slow_groups(own_ns: Floats, hosts: tuple[str, ...]) -> tuple[SlowGroup, ...]:
    """Hosts and rails of two ranks or more that are slow as one, of own times [ranks, steps] of at least 20 steps.

    Slow is a group whose median rank exceeds that of the others, over the steps, as ``chronic_excess`` says of a rank; of
    whose ranks nearly all have ALIKE of that excess; and nearly all of the others are faster than nearly all of it. Others
    that are such a group themselves, and share no rank with it, do not count there.
    """
    levels = np.median(own_ns - np.median(own_ns, axis=0), axis=1)
    least = MIN_EXCESS * float(np.median(own_ns))
    likely = []
    for kind, members in _groups(hosts):
        mine = np.zeros(levels.size, dtype=bool)
        mine[members] = True
        excess = float(np.median(levels[mine]) - np.median(levels[~mine]))
        if excess > least and _least(levels[mine]) - np.median(levels[~mine]) >= ALIKE * excess:
            likely.append((kind, mine))
    found = []
    for kind, mine in likely:
        others = ~mine
        for _, theirs in likely:
            if not (theirs & mine).any():
                others &= ~theirs
        if not others.any() or _least(levels[mine]) <= -_least(-levels[others]):
            continue
        middle = np.median(own_ns[others], axis=0)
        excess_of = chronic_excess(np.median(own_ns[mine], axis=0) - middle, middle)
        if excess_of is not None:
            found.append(
                SlowGroup(
                    kind=kind,
                    members=tuple(np.flatnonzero(mine).tolist()),
                    excess=excess_of,
                    middle_ns=np.asarray(middle),
                )
            )
    return tuple(found)


def _least(levels: Floats) -> float:
    """What nearly all exceed or reach; of fewer than ten the least."""
    return float(np.quantile(levels, 1 - NEARLY_ALL, method="lower"))


def _groups(hosts: tuple[str, ...]) -> Iterator[tuple[Literal["host", "rail"], list[int]]]:
    """Ranks that share a host, then a rail; none of one rank, and none that are all."""
    rails = rails_of(hosts)
    known = [rank for rank, rail in enumerate(rails) if rail is not None]
    for members in grouped(known, lambda rank: hosts[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "host", members
    for members in grouped(known, lambda rank: rails[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "rail", members
