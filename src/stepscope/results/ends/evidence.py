"""What is known as a cell or a job ends, wherever it comes from. Any of it may be missing: who is silent because nothing of
it is here is not accused.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import failure_sign
from stepscope.records.profile import Deadline, End, Hang
from stepscope.records.samples import Heartbeat
from stepscope.results.ends.stacks import LeftState
from stepscope.results.ends.timeouts import timeout_of

Process = tuple[str, int]
"""Host and process id."""

Sort = Literal["oom", "host_oom", "failed", "timeout", "victim", "stopped", "fine"]
"""oom, host_oom, failed: by itself. timeout: gave up waiting for others. victim, stopped: through others."""

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that launchers, schedulers and users stop a job with."""

SIGNALS = {int(number): number.name for number in signal.Signals}
_STOPPED = ("KeyboardInterrupt", "SignalException")
_OUT_OF_MEMORY: Mapping[str, Sort] = {"OutOfMemoryError": "oom", "MemoryError": "host_oom"}
_PEER_GONE = ("DistNetworkError", "DistStoreError")


@record
class Fate:
    """How one process ended. rank: None where it is unknown. at_ns: when, on the wall clock; without that it is the last.

    code: negative for a signal. silent: it left no word of its end where it could have. stepped: it left a diary; steps:
    that it had ended, last_ns: when it wrote the last of them. well: Python ran to its end. gone_ns: when it was seen to
    be gone; running: it was seen to outlive what started it. left: what no end takes from it. step: in which it was, where
    it counts them itself. facts: what else is known of it, in words.
    """

    rank: int | None
    process: Process = ("", 0)
    sort: Sort
    at_ns: float = math.inf
    code: int | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    phase: str | None = None
    step: int | None = None
    steps: int = 0
    silent: bool = False
    stepped: bool = False
    last_ns: float = 0
    well: bool = False
    gone_ns: int | None = None
    running: bool = False
    left: LeftState | None = None
    facts: tuple[str, ...] = ()


@record
class Launcher:
    """What starts the ranks. ended: a signal ended it, and no rank before it; gone_ns: when. noticed: the rank that it saw
    fail first. running: ranks that outlived it, each with its process id."""

    ended: bool = False
    gone_ns: float = 0
    noticed: int | None = None
    running: tuple[tuple[int, int], ...] = ()


@record
class RankCalls:
    """What ranks called and did not call, in words. rank: the lowest that causes point at; None for nobody.

    hung: of ranks that stood still. differed: only calls that were not the same on all ranks, for ranks that broke instead,
    where calls that were never made follow from the break; None when there are none.
    """

    hung: str
    differed: str | None
    rank: int | None


@record
class CommandEnd:
    """What is known of the command itself. code: as a shell gives it, None: not known. host: where it ran.

    signals: that were sent to stepscope: number, and when. hang: what was seen of ranks that stood still to the end; stall:
    the same where that was too short for a hang. oom_kills: processes that the kernel killed for memory on this host;
    memory_low: it had next to no memory left. asked: whether a window was asked for at the start.
    """

    code: int | None
    host: str = ""
    signals: Sequence[tuple[int, int]] = ()
    hang: Hang | None = None
    stall: Hang | None = None
    oom_kills: int = 0
    memory_low: bool = False
    asked: bool = True


@record
class EndEvidence(CommandEnd):
    """fates: in order of time. furthest: the most steps that any rank had ended, None: nobody counts them; counted: ranks of
    which every step is known. steps: recorded or profiled; windows: one was tried. unrecorded: why there is no step.

    beats: the last heartbeat of each rank; None: nobody kept any. finished: ranks that were through. calls: what flight
    recorders say.
    """

    fates: Sequence[Fate]
    world_size: int = 0
    launcher: Launcher = field(default_factory=Launcher)
    furthest: int | None = None
    counted: frozenset[int] = frozenset()
    steps: int = 0
    windows: bool = False
    unrecorded: str | None = None
    beats: Mapping[int, Heartbeat] | None = None
    finished: frozenset[int] = frozenset()
    deadline: Deadline | None = None
    calls: RankCalls | None = None

    def first(self, *sorts: Sort) -> list[Fate]:
        """Return the process of these sorts that failed first; with it those that failed of the same at the same time."""
        ordered = sorted((fate for fate in self.fates if fate.sort in sorts), key=self._order)
        if not ordered:
            return []
        first = ordered[0]
        if first.rank is None:
            first = next(
                (f for f in ordered if f.rank is not None), first
            )  # a launcher's own exception follows a rank's
        return [first, *(f for f in ordered if f is not first and _same_failure(f, first))]

    def _order(self, fate: Fate) -> tuple[float, bool, bool, int]:
        """Return a key by which the first to end comes first; those without a time come last, before them the one the
        launcher noticed."""
        return (
            fate.at_ns,
            fate.rank is None,
            math.isinf(fate.at_ns) and fate.rank != self.launcher.noticed,
            fate.rank or 0,
        )


TOGETHER_NS = 5_000_000_000
"""Ranks that raise the same exception at the same place within this time failed side by side, none of another."""


def _same_failure(fate: Fate, first: Fate) -> bool:
    same = (fate.exception, fate.place, fate.code) == (first.exception, first.place, first.code)
    return same and fate.at_ns - first.at_ns <= TOGETHER_NS


def signal_of(code: int | None) -> int | None:
    """Return the signal that a code stands for, negative as Python gives it, or 128 more as a shell does; None where none
    does."""
    number = 0 if code is None else -code if code < 0 else code - 128
    return number if number in SIGNALS else None


def class_name(exception: str) -> str:
    """Return the name of an exception's class, without its module."""
    return exception.rpartition(".")[2]


def sort_of(exception: str | None, message: str | None, code: int | None) -> Sort:
    """Return how a process ended by its exception, else by its code."""
    if exception is None:
        number = signal_of(code)
        return "stopped" if number in STOPPING else "failed" if code else "fine"
    name, sign = class_name(exception), failure_sign(message or "")
    if name in _STOPPED:
        return "stopped"
    if sign in ("oom", "host_oom"):
        return "oom" if sign == "oom" else "host_oom"
    if timeout_of(message or "") is not None:
        return "timeout"
    if name in _OUT_OF_MEMORY:
        return _OUT_OF_MEMORY[name]
    return "victim" if name in _PEER_GONE or sign == "victim" else "failed"


def error_text(of: Fate | End) -> str | None:
    """Return the exception with its message, as Python prints it."""
    return of.exception if of.message is None else f"{of.exception}: {of.message}"


def differed(evidence: EndEvidence) -> tuple[str, ...]:
    """Return what ranks called differently, by their flight recorders."""
    calls = evidence.calls
    return () if calls is None or calls.differed is None else (calls.differed,)
