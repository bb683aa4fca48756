"""Output of jobs, read line by line whatever its length: colours and the prefixes of launchers off, how a job ended, and
collectives that ran into their timeout.

Those lines are of ``ProcessGroupNCCL::WorkNCCL::checkTimeout`` (torch 2.0 to 2.9): the global rank stands in the prefix
``[rank5]:``, which torch writes since 2.2; ``[Rank 5]`` behind the file name is the rank within the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import LeftOut
from stepscope.records.nccl import WatchdogTimeout
from stepscope.records.nouns import Status
from stepscope.store.columns import bare
from stepscope.store.importer import Candidate, reading, whole_words

SUFFIXES = (".out", ".log", ".txt", ".err", "")
PIECE = 1 << 16
"""Bytes of a line beyond which it is read in pieces: a log of progress bars may have no line ends at all."""

NO_END = "has no line end"
RUN_THROUGH = "another process wrote into"
_NAMED = 5
_SHOWN = 40

_COLOURS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(rb"^\s*(?:\[(?:rank|default|Rank )?(\d{1,7})\]:?|(\d{1,7}):)\s?")
_MOMENT = re.compile(rb"^\d{4}-\d\d-\d\dT[\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?[ \t]")
_MOST_PREFIXES = 3
_TASK = 1 << 24
"""A prefix before another one counts as so many ranks, more than any job has."""
_STOPPED = re.compile(rb"received SIGTERM|CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION)")
_NO_MEMORY = re.compile(rb"CUDA out of memory|OutOfMemoryError")
_TIMED_OUT = b"Watchdog caught collective operation timeout"
_TRACEBACK = b"Traceback (most recent call last)"
_MARKS = (b"SIGTERM", b"CANCELLED", b"DUE TO", b"emory", b"Traceback", b"Watchdog caught")
"""Texts of which one is in every line that says how the job ended."""


class LogLines:
    """The lines of one file, .gz files too, read once: (line number from 1, line or a piece of it) at a time.

    Of a last line without an end, and of each piece of a longer line, only whole words come: a figure cut off is another
    figure. After the last line: count, how many there were; rest, the last one as it is, where it has no end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.rest = b""
        self._torn: list[int] = []
        self._left_out: bytes | None = b""  # of the last line: its last word, or all of it; None: nothing

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number, line). Raises DataError for a file that cannot be read."""
        unfinished, fresh = b"", True
        with reading(self.path) as file:
            while line := file.readline(PIECE):
                self.count += fresh
                fresh = line.endswith(b"\n")
                if fresh:
                    self.rest = b""
                    yield self.count, (unfinished + line).rstrip(b"\r\n")
                    unfinished = b""
                    continue
                self.rest = unfinished + line
                words, unfinished = whole_words(self.rest)
                yield self.count, words
            self._left_out = self._left_out or unfinished or None  # reached where no .gz was cut off

    def leave_out(self, number: int) -> None:
        """Note that the importer takes nothing of a line: it is the beginning of one, or another runs through it."""
        if self.rest:
            self._left_out = self.rest
        else:
            self._torn.append(number)

    def notes(self) -> list[str]:
        """Say what was left out of the file, with its lines."""
        notes = []
        if self._torn:
            at = ", ".join(map(str, self._torn[:_NAMED])) + (", ..." if self._torn[_NAMED:] else "")
            notes.append(
                f"{self.path}: {counted(len(self._torn), 'torn line')} left out (line {at}): {RUN_THROUGH} the middle"
            )
        if self._left_out is not None:
            word = self._left_out.decode("utf-8", errors="replace")[:_SHOWN]
            whole = self._left_out == self.rest
            what = (
                "it is left out" if whole else f"its last word {word!r} is left out" if word else "the file was cut off"
            )
            notes.append(f"{self.path}:{self.count}: the last line {NO_END}: {what}")
        return notes


def without_colours(line: bytes) -> bytes:
    return _COLOURS.sub(b"", line) if b"\x1b" in line else line


def without_prefix(line: bytes) -> tuple[int | None, bytes]:
    """Split a line into (who printed it, the line without what launchers put before it and without colours).

    Launchers put the time of a container's log, the number of a task (srun --label), a rank (torchrun). Who: the rank; of
    a task's local rank a number that only this one has; None: no launcher says it.
    """
    plain, who = without_colours(line), None
    if match := _MOMENT.match(plain):
        plain = plain[match.end() :]
    for _ in range(_MOST_PREFIXES):
        match = _RANK.match(plain)
        if match is None:
            break
        who = (0 if who is None else (who + 1) * _TASK) + int(match[1] or match[2])
        plain = plain[match.end() :]
    return who, plain


def finite(text: bytes) -> float | None:
    """Read a finite number, commas between thousands allowed; None for what is none (``nan`` in a loss, ``7,1``)."""
    return bare(text.decode("ascii", errors="replace"))


@dataclass(kw_only=True, slots=True)
class Ending:
    """What the lines of a job say of its end."""

    stopped: str | None = None
    out_of_memory: bool = False
    failed: bool = False
    timed_out: bool = False

    def read(self, line: bytes) -> None:
        """Take in one line; mostly it says nothing."""
        for mark in _MARKS:
            if mark in line:
                break
        else:
            return
        if self.stopped is None and _STOPPED.search(line):
            self.stopped = line.decode("utf-8", errors="replace").strip()[:200]
        elif _TIMED_OUT in line:
            self.timed_out = True
        elif _NO_MEMORY.search(line):
            self.out_of_memory = True
        elif _TRACEBACK in line:
            self.failed = True

    def status(self, done: str, *, complete: bool) -> tuple[Status, str | None]:
        """Return (status, error) of a job that came as far as ``done`` says. complete: it did all that it was to do."""
        if self.out_of_memory:
            return "oom", f"out of memory {done}"
        if self.stopped is not None:
            return "interrupted", f"{done}: {self.stopped}"
        if self.timed_out and not complete:
            return "timeout", f"a collective ran into its timeout {done}"
        if self.failed and not complete:
            return "error", f"a traceback {done}"
        return "ok", None


MARK = b"caught collective operation timeout"
END_BYTES = 1 << 20
"""Bytes looked at from a log's end: the watchdog ends the job, and only stacks of each rank follow."""

_TIMEOUT = re.compile(
    rb"\[Rank (?P<member>\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), "
    rb"OpType=(?P<op>\w{1,60})(?:, NumelIn=(?P<numel>\d{1,18}), NumelOut=\d{1,18})?, Timeout\(ms\)=(?P<timeout>\d{1,15})\)"
)
_GLOBAL = re.compile(rb"\[rank(\d{1,7})\]:")
_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
}  # fmt: skip


def reports(candidate: Candidate) -> bool:
    """Return whether a timeout stands at the beginning or the end of the file."""
    if MARK in candidate.head:
        return True
    try:
        with candidate.path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - END_BYTES))
            return MARK in file.read(END_BYTES)
    except OSError:
        return False


def timeouts(path: Path) -> Iterator[WatchdogTimeout]:
    for _, line in LogLines(path):
        if MARK not in line:
            continue
        for match in _TIMEOUT.finditer(line):
            ranks = _GLOBAL.findall(line, 0, match.start())
            op = match["op"].decode()
            yield WatchdogTimeout(
                rank=int(ranks[-1]) if ranks else None,
                member=int(match["member"]),
                sequence=int(match["sequence"]),
                op=_OPS.get(op, op.strip("_").lower()),
                elements=None if match["numel"] is None else int(match["numel"]),
                timeout_ms=int(match["timeout"]),
                source=str(path),
            )


def timeouts_beside(source: Candidate, left_out: Iterable[LeftOut]) -> tuple[WatchdogTimeout, ...]:
    """Return what the watchdog reports in logs that are read for something else; an unreadable log reports nothing."""
    reported: dict[WatchdogTimeout, None] = {}
    unread = {file_left_out.path for file_left_out in left_out}
    for file in (path for path in source.files if str(path) not in unread):
        if file.suffix.lower() in SUFFIXES and reports(Candidate(file)):
            try:
                reported |= dict.fromkeys(timeouts(file))
            except (DataError, OSError):
                continue
    return tuple(reported)
