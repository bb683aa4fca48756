"""Ranks that gave up waiting in a collective, and who never came to it. Pure: from texts and from what is known of ranks.

A timeout is the evidence of those that waited. At fault is who did not enter; where that is not known, nobody is accused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from stepscope.core.dataclass import dataclass

_GAVE_UP = (
    r"Timed out waiting (?P<ms1>\d+)ms for (?:recv|send) operation",  # gloo
    r"Application timeout caused pair closure",  # gloo, of another operation of the same process
    r"Operation timed out!",  # gloo, Work.wait(timeout)
    r"Watchdog caught collective operation timeout: WorkNCCL\(.*?ran for (?P<ms2>\d+) milliseconds",
    r"Watchdog caught collective operation timeout",
    r"failed to pass monitoredBarrier in (?P<ms3>\d+) ms",
    r"successfully reached monitoredBarrier, but received errors",
    r"wait timeout after (?P<ms4>\d+)ms",  # of the store
    r"Timed out after (?P<s1>\d+) seconds waiting for clients",
    r"Timed out initializing process group in store based barrier",
    r"Socket Timeout",
    r"Timed out waiting",
    r"Application timeout",
)
_NAMED = re.compile(r"Ranks? (?P<ranks>\d+(?:, *\d+)*) failed to pass monitoredBarrier")
LATE_NS = 2_000_000_000
"""A rank that notices so long after the first timeout that the others are gone came late, and was not inside with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """A wait that was given up. seconds: how long it waited, where the text says. named: ranks that the text accuses."""

    seconds: float | None = None
    named: tuple[int, ...] = ()


def timeout_of(message: str) -> Timeout | None:
    """Return what a message says of a wait that was given up, or None where it is of something else."""
    for pattern in _GAVE_UP:
        if match := re.search(pattern, message, re.DOTALL):
            given = {key: int(value) for key, value in match.groupdict().items() if value}
            seconds = [value / 1000 if key.startswith("ms") else float(value) for key, value in given.items()]
            named = _NAMED.search(message)
            ranks = () if named is None else tuple(int(word) for word in named["ranks"].split(","))
            return Timeout(seconds=next(iter(seconds), None), named=ranks)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRank:
    """What is known of a rank that did not time out. left: it had ended its training by itself before. alive: it ran when
    the first gave up; waits: whether it waited for others then, None: not known. late: it came after they had given up.
    """

    left: bool = False
    alive: bool = False
    waits: bool | None = None
    late: bool = False


def never_came(
    timed_out: Collection[int], others: Mapping[int, OtherRank], accused: Collection[int]
) -> tuple[int, ...]:
    """Return the ranks at fault; empty: not known. others: all ranks that did not time out. accused: by flight recorders,
    stacks or a message, which are trusted before what is known of ``others``."""
    if named := sorted(set(accused) - set(timed_out)):
        return tuple(named)
    absent = [
        rank for rank, other in others.items() if other.left or other.late or (other.alive and other.waits is False)
    ]
    if absent:
        return tuple(sorted(absent))
    open_ = [rank for rank, other in others.items() if other.waits is not True]
    # All the others were inside; the one of which nobody knows what it did lived, and was not.
    return tuple(open_) if len(open_) == 1 and others[open_[0]].alive else ()
