"""The traces of a window read while the job still runs: by a process that takes only what time the job leaves."""

from __future__ import annotations

import io
import os
import pickle
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stepscope.core.errors import StepscopeError
from stepscope.core.forks import begin, can_fork, map_forked, usable_cores

if TYPE_CHECKING:
    from stepscope.records.trace_summary import RankPass, TraceSummary
    from stepscope.traces.rank_pass import Wanted

NICE = 19


class WindowReading:
    """From when every rank has written its trace on. ``result`` ends it, and reads what is left at full speed, once.

    beside: begin now, while the job runs; else nothing is read before ``result``.
    """

    def __init__(self, folder: Path, *, beside: bool = True) -> None:
        self._folder = folder
        self._pid: int | None = None
        self._done = -1
        self._found: Mapping[str, TraceSummary] | None = None
        if not (beside and can_fork()):
            return
        self._done = os.memfd_create("ranks")
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _read_all(parent, folder, self._done)
        self._pid = pid

    def result(self, wanted: Wanted) -> Mapping[str, TraceSummary]:
        """As ``analyse_captures`` of the folder. wanted: where nothing is read yet, else everything. Raises DataError."""
        if self._found is None:
            self._found = self._read(wanted)
        return self._found

    def _read(self, wanted: Wanted) -> Mapping[str, TraceSummary]:
        passes = self._end()
        from stepscope.traces.job import analyse_captures, combine
        from stepscope.traces.load import one_per_rank, trace_files

        files, skipped = trace_files([self._folder])
        left = [file for file in files if str(file) not in passes]
        if not passes or skipped:
            return analyse_captures(self._folder, wanted=wanted)
        work = _pass_of(alone=len(files) == 1)
        count = min(usable_cores(), len(left))
        read = map_forked(work, left, count, done=lambda _: None) if count > 1 and can_fork() else map(work, left)
        for file, found in zip(left, read, strict=True):
            if isinstance(found, StepscopeError):
                raise found
            passes[str(file)] = found
        every = list(passes.values())
        if len({each.facts.rank for each in every}) < len(every):
            return analyse_captures(self._folder, wanted=wanted)
        return {"": combine(one_per_rank(every, rank=lambda p: p.facts.rank, path=lambda p: Path(p.facts.file)))}

    def _end(self) -> dict[str, RankPass]:
        """What the process has read, by file; it ends."""
        if self._pid is None:
            return {}
        pid, self._pid = self._pid, None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found: dict[str, RankPass] = {}
        os.lseek(self._done, 0, os.SEEK_SET)
        with open(self._done, "rb") as file, suppress(EOFError, pickle.UnpicklingError):  # noqa: PTH123 - a descriptor
            while True:
                name, read = pickle.load(file)
                found[name] = read
        return found


def _pass_of(*, alone: bool) -> partial[RankPass]:
    from stepscope.traces.rank_pass import Wanted, pass_file

    return partial(pass_file, wanted=Wanted(), stated={}, alone=alone)


def _read_all(parent: int, folder: Path, sink: int) -> NoReturn:
    """What the process does: one rank after another, each kept as soon as it is read."""
    try:
        begin(parent)
        os.nice(NICE)
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        from stepscope.traces.load import trace_files

        files, _ = trace_files([folder])
        work = _pass_of(alone=len(files) == 1)
        for file in files:
            with suppress(StepscopeError):  # whoever shows the traces says why
                text = io.BytesIO()
                pickle.dump((str(file), work(file)), text, pickle.HIGHEST_PROTOCOL)
                os.write(sink, text.getbuffer())
    finally:
        os._exit(0)
