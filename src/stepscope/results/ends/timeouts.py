"""Texts of ranks that gave up waiting in a collective."""

from __future__ import annotations

import re

from stepscope.core.dataclass import record

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


@record
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
