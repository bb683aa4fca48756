"""Output of jobs, read line by line whatever its length: colours and the prefixes of launchers off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepscope.core.words import counted
from stepscope.store.columns import bare
from stepscope.store.importer import reading, whole_words

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


class LogLines:
    """The lines of one file, .gz files too, read once: (line number from 1, line or a piece of it) at a time.

    Of a last line without an end, and of each piece of a longer line, only whole words come: a figure cut off is another
    figure. texts: all of it comes, unless it ends in a digit. After the last line: count, how many there were; rest, the
    last one as it is, where it has no end.
    """

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self.path = path
        self._texts = texts
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
                ends = self._texts and len(line) < PIECE and not self.rest[-1:].isdigit()
                yield self.count, self.rest if ends else words
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


_BLOCK = 1 << 20
_LONGEST_MARK = 100


def marks_in(path: Path, marks: Iterable[bytes]) -> frozenset[bytes]:
    """Return those of ``marks`` that a file holds. Raises DataError for one that cannot be read."""
    there: set[bytes] = set()
    marks = tuple(marks)
    end = b""
    with reading(path) as file:
        while block := file.read(_BLOCK):
            text = end + block
            short = not there and len(text) < _BLOCK  # a paste, in which a terminal may have wrapped a mark
            texts = (text, text.replace(b"\n", b""), text.replace(b"\n", b" ")) if short else (text,)
            there |= {mark for mark in marks if mark not in there and any(mark in one for one in texts)}
            end = block[-_LONGEST_MARK:]
    return frozenset(there)
