"""The windows of a hooked job as its ranks report them, and the wait for one."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import DataError
from stepscope.records.profile import HookedProcess, HookedRank, WindowOfRank, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

POLL_S = 0.05
STRAGGLING_S = 60.0
"""From a window's first report to the end of the wait for the ranks that have not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """What is known of a window. expected: ranks that were asked and are known to exist; None before any rank stepped.

    unknown: ranks that were asked and that a job of ``world_size`` ranks does not have.
    """

    expected: tuple[int, ...] | None
    reports: tuple[WindowOfRank, ...]
    world_size: int | None = None
    unknown: tuple[int, ...] = ()

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that have not reported an end of the window."""
        ended = {report.rank for report in self.reports if report.status != "open"}
        return tuple(rank for rank in self.expected or () if rank not in ended)

    @property
    def complete(self) -> bool:
        return bool(self.expected) and not self.silent

    @property
    def written(self) -> tuple[WindowOfRank, ...]:
        return tuple(report for report in self.reports if report.status == "written")

    @property
    def steps(self) -> int:
        """Profiled steps of the rank with most of them."""
        return max((len(report.profiled_ns) for report in self.written), default=0)


def window_state(layout: ProfileLayout, number: int, request: WindowRequest) -> WindowState:
    """Of window ``number``, from the files that ranks wrote."""
    reports = [read_record(path, WindowOfRank) for path in layout.window_ranks(number)]
    worlds = {r.world_size for r in reports} or {read_record(p, HookedRank).world_size for p in layout.ranks()[:1]}
    world = max(worlds, default=None)
    expected = None if world is None else tuple(range(world))
    unknown: tuple[int, ...] = ()
    if expected is not None and request.ranks is not None:
        unknown = tuple(rank for rank in request.ranks if rank not in expected)
        expected = tuple(rank for rank in request.ranks if rank in expected)
    ordered = tuple(sorted(reports, key=lambda r: r.rank))
    return WindowState(expected=expected, reports=ordered, world_size=world, unknown=unknown)


class WindowWait:
    """The wait for window ``number``: over once every rank has reported, none of those asked exists, or STRAGGLING_S have
    passed since the first report."""

    def __init__(self, layout: ProfileLayout, number: int, request: WindowRequest) -> None:
        self._of = layout, number, request
        self._first_report: float | None = None
        self.over = False
        self.state = WindowState(expected=None, reports=())

    def look(self) -> bool:
        """Read the reports; whether the wait is over."""
        with suppress(DataError):  # of a full disk: what was read before counts
            self.state = window_state(*self._of)
        state = self.state
        if len(state.silent) < len(state.expected or ()) and self._first_report is None:
            self._first_report = time.monotonic()
        late = self._first_report is not None and time.monotonic() - self._first_report > STRAGGLING_S
        self.over = state.complete or state.expected == () or late
        return self.over


def wait_for_window(layout: ProfileLayout, number: int, request: WindowRequest) -> WindowState:
    """The window of a job of somebody else's, whose end shows where its ranks run on this host."""
    wait = WindowWait(layout, number, request)
    while True:
        gone = is_gone(layout)
        if wait.look() or gone:
            return wait.state
        time.sleep(POLL_S)


def is_gone(layout: ProfileLayout) -> bool:
    """Whether every known rank of this host has ended; False where none ran here."""
    here = [rank for rank in (read_record(p, HookedRank) for p in layout.ranks()) if rank.host == socket.gethostname()]
    return bool(here) and not any(map(runs_here, here))


def runs_here(process: HookedProcess | HookedRank) -> bool:
    return process.host == socket.gethostname() and Path(f"/proc/{process.pid}").exists()
