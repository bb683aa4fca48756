"""Output of jobs, read line by line whatever its length: colours and the prefixes of launchers off."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path

from stepscope.core.words import counted
from stepscope.store.columns import bare
from stepscope.store.importer import opened, reading, whole_words

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
        for first, lines in self.batches():
            yield from enumerate(lines, first)

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (number of the first, lines), many at a time. Raises DataError for a file that cannot be read."""
        unfinished, fresh = b"", True
        for gap, block in blocks_of(self.path):
            if gap is not None:  # what lies around it are parts of lines
                self.count += gap + fresh
                block = block.partition(b"\n")[2]
                unfinished, fresh = b"", True
            *lines, unfinished = (unfinished + block).split(b"\n")
            if lines and fresh and len(max(lines, key=len)) < PIECE:
                yield self._whole(lines)
                lines = []
            for line in lines:
                fresh, line = yield from self._pieces(line, fresh=fresh)
                self.count -= not fresh
                yield self._whole([line])
                fresh = True
            fresh, unfinished = yield from self._pieces(unfinished, fresh=fresh)
        if unfinished:
            self.count += fresh
            self.rest = unfinished
            words, unfinished = whole_words(unfinished)
            yield self.count, [self.rest if self._texts and not self.rest[-1:].isdigit() else words]
        self._left_out = self._left_out or unfinished or None  # reached where no .gz was cut off

    def _whole(self, lines: list[bytes]) -> tuple[int, list[bytes]]:
        first = self.count + 1
        self.count += len(lines)
        self.rest = b""
        return first, [line.rstrip(b"\r") for line in lines]

    def _pieces(self, line: bytes, *, fresh: bool) -> Generator[tuple[int, list[bytes]], None, tuple[bool, bytes]]:
        """Yield the beginning of a long line; return what is left, and whether the line begins there."""
        while len(line) >= PIECE:
            self.count += fresh
            fresh = False
            self.rest = line
            words, more = whole_words(line[:PIECE])
            line = more + line[PIECE:]
            yield self.count, [words]
        return fresh, line

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


_BLOCK = 1 << 18
_LONGEST_MARK = 100
WHOLE = 64 << 20
"""Bytes of the largest log that is read as a whole."""
_START, _END = 1 << 20, 32 << 20
"""Bytes that are read of a larger one: how a job ended stands at the end of its log."""


def blocks_of(path: Path) -> Iterator[tuple[int | None, bytes]]:
    """Yield (None, bytes) of a log; before the end of a large one (ends of lines that are left out there, bytes).

    Raises DataError for a file that cannot be read.
    """
    size = _size_if_large(path)
    gap: int | None = None
    left = _BLOCK if size is None else _START
    with reading(path) as file:
        while block := file.read1(min(_BLOCK, left)):
            yield gap, block
            gap = None
            if size is not None and not (left := left - len(block)):
                gap = _ends_between(path, _START, size - _END)
                left = file.seek(size - _END)


def _size_if_large(path: Path) -> int | None:
    """Return the size of a log too large to be read as a whole; None: it is none, or packed."""
    size = path.stat().st_size
    with opened(path) as file:
        return size if size > WHOLE and isinstance(file, io.BufferedReader) else None


@cache
def _ends_between(path: Path, start: int, end: int) -> int:
    """Count the ends of lines in a part of a file."""
    ends = 0
    with path.open("rb") as file:
        file.seek(start)
        while (left := end - file.tell()) > 0 and (block := file.read(min(_BLOCK, left))):
            ends += block.count(b"\n")
    return ends


def parts_read(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return a note for each log of which only parts are read."""
    sizes = ((path, _size_if_large(path) if path.suffix.lower() in SUFFIXES else None) for path in paths)
    return tuple(
        f"{path}: its first {_START >> 20} MiB and last {_END >> 20} MiB of {size / (1 << 30):.1f} GiB are read: figures, "
        "and how the job ended, are of these"
        for path, size in sizes
        if size is not None
    )


_NUMERALS = bytes.maketrans(b"123456789", b"0" * 9)


def shape(text: bytes) -> bytes:
    """Return a text with ``0`` for each digit: lines of the same shape say the same, of other numbers."""
    return text.translate(_NUMERALS)


def marks_in(path: Path, marks: Iterable[bytes]) -> frozenset[bytes]:
    """Return those of ``marks`` that a file holds. Raises DataError for one that cannot be read."""
    there: set[bytes] = set()
    shapes = {mark: shape(mark) for mark in marks}
    end = b""
    for _, block in blocks_of(path):
        text = end + block
        short = not there and len(text) < PIECE  # a paste, in which a terminal may have wrapped a mark
        texts = (text, text.replace(b"\n", b""), text.replace(b"\n", b" ")) if short else (text,)
        distinct = b"\n".join(set(shape(text).split(b"\n")))
        there |= {
            mark
            for mark, form in shapes.items()
            if mark not in there and (short or form in distinct) and any(mark in one for one in texts)
        }
        end = block[-_LONGEST_MARK:]
    return frozenset(there)
