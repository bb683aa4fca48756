"""The windows of a hooked job as its ranks report them, and the wait for one.

A process that takes only the time that the job leaves reads the traces of a window while the job still runs.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.forks import begin, can_fork, map_forked, usable_cores
from stepscope.records.profile import HookedProcess, HookedRank, WindowOfRank, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

if TYPE_CHECKING:
    from stepscope.records.trace_summary import RankPass, TraceSummary
    from stepscope.traces.sections import Wanted


POLL_S = 0.05
STRAGGLING_S = 60.0
"""How long the ranks that have not reported are waited for after a window's first report."""


@record
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
    """Return the state of window ``number``, from the files that ranks wrote."""
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
        """Read the reports; return whether the wait is over."""
        with suppress(DataError):  # of a full disk: what was read before counts
            self.state = window_state(*self._of)
        state = self.state
        if len(state.silent) < len(state.expected or ()) and self._first_report is None:
            self._first_report = time.monotonic()
        late = self._first_report is not None and time.monotonic() - self._first_report > STRAGGLING_S
        self.over = state.complete or state.expected == () or late
        return self.over


def wait_for_window(layout: ProfileLayout, number: int, request: WindowRequest) -> WindowState:
    """Wait for the window of somebody else's job, whose end shows where its ranks run on this host."""
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


NICE = 19

CORES_A_RANK = 2
"""So many cores for each rank leave one that reads the traces while the job runs: a reader slows ranks that are timed."""


def room_beside(state: WindowState) -> bool:
    """Whether the traces of a window can be read while the job runs."""
    return usable_cores() >= CORES_A_RANK * len(state.expected or ())


class WindowReading:
    """Reads a window from when every rank has written its trace. ``result`` ends it, and reads what is left at full speed,
    once.

    beside: begin now, while the job runs; else nothing is read before ``result``.
    """

    def __init__(self, folder: Path, *, beside: bool = True) -> None:
        self._folder = folder
        self._pid: int | None = None
        self._done = -1
        self._summaries: Mapping[str, TraceSummary] | None = None
        if not (beside and can_fork()):
            return
        self._done = os.memfd_create("ranks")
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _read_all(parent, folder, self._done)
        self._pid = pid

    def result(self, wanted: Wanted) -> Mapping[str, TraceSummary]:
        """Return what ``analyse_captures`` gives for the folder: ``wanted`` where nothing is read yet, else everything.
        Raises DataError."""
        if self._summaries is None:
            self._summaries = self._read(wanted)
        return self._summaries

    def _read(self, wanted: Wanted) -> Mapping[str, TraceSummary]:
        """Return the summaries of the window's captures by name, of the ranks that are wanted."""
        passes = self._end()
        from stepscope.traces.job import analyse_captures, combine
        from stepscope.traces.load import one_per_rank, trace_files

        files, skipped = trace_files([self._folder])
        left = [file for file in files if str(file) not in passes]
        if not passes or skipped:
            return analyse_captures(self._folder, wanted)
        work = _pass_of(files)
        count = min(usable_cores(), len(left))
        read = map_forked(work, left, count, done=lambda _: None) if count > 1 and can_fork() else map(work, left)
        for file, outcome in zip(left, read, strict=True):
            if isinstance(outcome, StepscopeError):
                raise outcome
            passes[str(file)] = outcome
        every = [rank_pass for read_of in passes.values() for rank_pass in read_of]
        if len({rank_pass.facts.rank for rank_pass in every}) < len(every):
            return analyse_captures(self._folder, wanted)
        return {"": combine(one_per_rank(every, rank=lambda p: p.facts.rank, path=lambda p: Path(p.facts.file)))}

    def _end(self) -> dict[str, tuple[RankPass, ...]]:
        """End the reading process and return what it has read, by file."""
        if self._pid is None:
            return {}
        pid, self._pid = self._pid, None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        passes: dict[str, tuple[RankPass, ...]] = {}
        os.lseek(self._done, 0, os.SEEK_SET)
        with open(self._done, "rb") as file, suppress(EOFError, pickle.UnpicklingError):  # noqa: PTH123 - a descriptor
            while True:
                name, read = pickle.load(file)
                passes[name] = read
        return passes


def _pass_of(files: Sequence[Path]) -> partial[tuple[RankPass, ...]]:
    from stepscope.traces.file_names import ranks_by_name
    from stepscope.traces.rank_pass import passes_of
    from stepscope.traces.sections import BY_STEP, Wanted

    return partial(passes_of, wanted=Wanted(sections=BY_STEP), names=ranks_by_name(files))


def _read_all(parent: int, folder: Path, sink: int) -> NoReturn:
    """Do the work of the process: read one rank after another, each kept as soon as it is read."""
    try:
        begin(parent)
        os.nice(NICE)
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        from stepscope.traces.load import trace_files

        files, _ = trace_files([folder])
        work = _pass_of(files)
        for file in files:
            with suppress(StepscopeError):  # whoever shows the traces says why
                text = io.BytesIO()
                pickle.dump((str(file), work(file)), text, pickle.HIGHEST_PROTOCOL)
                os.write(sink, text.getbuffer())
    finally:
        os._exit(0)
