"""Processes of one command put together: the attempts of a training, and trainings one after the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stepscope.core.dataclass import record

T = TypeVar("T")


@record
class ProcessSpan:
    """One process: its rank, how often the launcher had restarted it, and its first and last step on the wall clock, ns."""

    rank: int
    restart: int
    start_ns: float
    end_ns: float


def trainings(processes: Iterable[T], span: Callable[[T], ProcessSpan]) -> list[list[list[T]]]:
    """Return the trainings in order of time, each the list of its attempts, each attempt the processes that trained
    together.

    The launcher counts its restarts: an attempt whose count does not grow is another training, whatever started it. A second
    process of a rank that runs beside the first belongs to the same attempt.
    """
    ordered: list[list[list[T]]] = []
    ends, restart = float("-inf"), -1
    for process in sorted(processes, key=lambda candidate: span(candidate).start_ns):
        seen = span(process)
        if ordered and seen.restart == restart and seen.start_ns < ends:
            ordered[-1][-1].append(process)
            ends = max(ends, seen.end_ns)
            continue
        if ordered and seen.restart > restart:
            ordered[-1].append([process])
        else:
            ordered.append([[process]])
        ends, restart = seen.end_ns, seen.restart
    return ordered
