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
from stepscope.stats.step_table import UNKNOWN_HOST

Floats = NDArray[np.float64]

NEARLY_ALL = 0.9
"""Share of a group's ranks, and of the others, that counts: what single ranks do otherwise (one that is slower still) hides
no group."""

ALIKE = 0.5
"""Share of a group's excess that nearly all of its ranks have at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Ranks that are slow as one. kind: what they share. members: their rows. middle_ns: [steps], median own time of the
    ranks outside of it."""

    kind: Literal["host", "rail"]
    members: tuple[int, ...]
    excess: Excess
    middle_ns: Floats


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


def slow_groups(own_ns: Floats, hosts: tuple[str, ...]) -> tuple[SlowGroup, ...]:
    """Return the hosts and rails of two ranks or more that are slow as one, from own times [ranks, steps] of at least 20
    steps.

    Slow is a group whose median rank exceeds that of the others, over the steps, as ``chronic_excess`` says of a rank; of
    whose ranks nearly all have ALIKE of that excess; and nearly all of the others are faster than nearly all of it. Others
    that are such a group themselves, and share no rank with it, do not count there.
    """
    levels = np.median(own_ns - np.median(own_ns, axis=0), axis=1)
    least = MIN_EXCESS * float(np.median(own_ns))
    likely = []
    for kind, members in _groups(hosts):
        inside = np.zeros(levels.size, dtype=bool)
        inside[members] = True
        excess = float(np.median(levels[inside]) - np.median(levels[~inside]))
        if excess > least and _least(levels[inside]) - np.median(levels[~inside]) >= ALIKE * excess:
            likely.append((kind, inside))
    groups = []
    for kind, inside in likely:
        others = ~inside
        for _, theirs in likely:
            if not (theirs & inside).any():
                others &= ~theirs
        if not others.any() or _least(levels[inside]) <= -_least(-levels[others]):
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


def _least(levels: Floats) -> float:
    """Return what nearly all exceed or reach; of fewer than ten the least."""
    return float(np.quantile(levels, 1 - NEARLY_ALL, method="lower"))


def _groups(hosts: tuple[str, ...]) -> Iterator[tuple[Literal["host", "rail"], list[int]]]:
    """Yield ranks that share a host, then those that share a rail; no group of one rank, and none that is all ranks."""
    rails = rails_of(hosts)
    placed = [rank for rank, rail in enumerate(rails) if rail is not None]
    for members in grouped(placed, lambda rank: hosts[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "host", members
    for members in grouped(placed, lambda rank: rails[rank]).values():
        if 1 < len(members) < len(hosts):
            yield "rail", members
