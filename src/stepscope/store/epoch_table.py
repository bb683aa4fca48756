"""A CSV with one row per epoch: columns under their usual names, what is wrong with the rows, and what the order of the
epochs shows: one job, one that was started again, or two at the same time.

Read line by line: memory is bounded by ``MAX_ROWS`` whatever the file's size.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.core.units import format_duration
from stepscope.core.words import counted, listed, plural
from stepscope.records.training import Epoch
from stepscope.store.columns import bare, columns_of, plain
from stepscope.store.importer import reading
from stepscope.store.log_lines import NO_END
from stepscope.store.tables import delimiter_of, surely_whole

MAX_SERIES = 16
"""Most series of a file, more than jobs write into one; numbers that fit none of so many go to the latest."""

MOST_EPOCHS = 10**7
"""Every epoch's number is below this; one that is not is damage."""


_SOME = 3


def is_clock(times: Sequence[float]) -> bool:
    """Return whether times by epoch are likely to count from the training's start: they only grow, past twice the first."""
    return len(times) > _SOME and all(a < b for a, b in pairwise(times)) and times[-1] > 2 * times[0]


CLOCK = re.compile(r"(?:time|wall(?:_?time|_clock)?|elapsed(?:_time)?)(?:_(?:s|secs?|seconds|ms|min|minutes|h|hours))?")
"""Columns that may count from the start of the training: whether they do, their values show."""
_STAMPS, _LATEST = 1e18, 1e19
"""Between them a clock, ns, counts from 1970, not from the start of the training."""
_GROWTH = 0.05
_GROWTH_OF_MANY = 0.02
_MANY = 5
"""From so many epochs on, times that only grow are no noise, however long the start of the training took."""


def _rises_between(steps: Sequence[float | None]) -> bool:
    """Return whether the times of a clock that was started again rise for some epochs before and after each start."""
    pieces = "".join("-" if step is None else "+" for step in steps).split("-")
    return min(map(len, pieces)) >= _SOME


def own_times(
    name: str | None, numbers: Sequence[int], times: Sequence[float | None]
) -> tuple[list[float | None], str] | None:
    """Return the time of each epoch and a note, where a column counts from the start of the training; None: it does not.

    It grows from one epoch to the next by far more than noise, but for where the training was started again. The first time
    has all that starts up in it, and is no epoch's where the table does not begin with the first epoch.
    """
    clock = [time for time in times if time is not None]
    if CLOCK.fullmatch(plain(name or "")) is None or len(clock) < max(_SOME, len(times)):
        return None
    stamps = clock[0] > _STAMPS
    steps = [b - a if b > a else None for a, b in pairwise(clock)]
    grown = [step for step in steps if step is not None]
    enough = 0.0 if stamps else _GROWTH if len(clock) < _MANY else _GROWTH_OF_MANY
    restarted = len(steps) - len(grown)
    if restarted > len(steps) // _MANY or not grown or any(b - a != 1 for a, b in pairwise(numbers)):
        return None
    if median(grown) < enough * clock[0] or (restarted and not _rises_between(steps)):
        return None
    begins = numbers[0] <= 1 and not stamps
    first = f", after {format_duration(clock[0])} for the first, with what starts up" if begins else ""
    note = (
        f"{name} counts from {'1970' if stamps else 'the start of the training'}: an epoch's time is the difference, "
        f"{format_duration(median(grown))}{first}"
    )
    return [clock[0] if begins else None, *steps], note


@record
class EpochOrder:
    """duplicates: epochs that appear more than once, sorted. series: rising sequences that the rows fall into; 0: no row.

    alternating: rows of one series stand between rows of another, so their writers ran at the same time.
    backwards: how often a number is not above the one before.
    """

    duplicates: tuple[int, ...]
    series: int
    alternating: bool
    backwards: int

    @property
    def sentence(self) -> str | None:
        """What to tell a reader; None: every epoch stands once and in order."""
        if not self.duplicates and not self.backwards:
            return None
        twice = f"{_epoch_ranges(self.duplicates)} appear more than once" if self.duplicates else "epochs go backwards"
        if self.alternating:
            return (
                f"{twice} and rows of {self.series} series alternate: {self.series} jobs wrote this file at the same time; "
                "no row states whose it is, so that time of an epoch and best accuracy are left out"
            )
        return f"{twice}: the job was restarted and continued this file; all rows are kept"


def epoch_order(numbers: Sequence[int]) -> EpochOrder:
    """Describe the order of ``numbers``: each is put to the series that it continues, the latest one first."""
    last: list[int] = []
    owners: list[int] = []
    for number in numbers:
        latest_first = sorted(range(len(last)), key=lambda i: i != owners[-1])
        owner = next((i for i in latest_first if last[i] == number - 1), None)
        if owner is None:
            below = [i for i in latest_first if last[i] < number]
            new = len(last) if len(last) < MAX_SERIES else owners[-1]
            owner = max(below, key=last.__getitem__, default=new)
        last[owner : owner + 1] = [number]
        owners.append(owner)
    switches = sum(a != b for a, b in pairwise(owners))
    return EpochOrder(
        duplicates=tuple(sorted(number for number, times in Counter(numbers).items() if times > 1)),
        series=len(last),
        alternating=len(last) > 1 and switches > len(last) - 1,
        backwards=sum(b <= a for a, b in pairwise(numbers)),
    )


def _epoch_ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ``epochs 6 to 20`` or ``epochs 3, 5, 7``."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"epochs {numbers[0]} to {numbers[-1]}"
    return f"{plural(len(numbers), 'epoch')} {listed(numbers, at_most=8)}"


MAX_ROWS = 100_000
MAX_LINE = 64 << 10
NAMED_ROWS = 5
MAX_EPOCH_NS = 3.2e17
"""The longest time of an epoch, ten years; a longer one is damage."""
LEAST = 1e-9
"""The least ns of an epoch and samples a second; what is less was not measured."""
MAX_VALUE = 1e100
"""Losses that run away get large; beyond this their sums overflow."""

_RESULTS = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
_RATES = ("duration_ns", "samples_per_s")
_EPOCH = Epoch(number=0, duration_ns=None, train_loss=None)
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\udc80-\udcff]")


@record
class EpochTable:
    """What a file holds. epochs: in the file's order. remarks: how their times were found. empty: why there is none.
    blank: not even a header.

    repeated_headers: header lines after the first. order: what the epochs' numbers say of who wrote the file.
    """

    epochs: tuple[Epoch, ...]
    order: EpochOrder
    repeated_headers: int
    notes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    empty: str | None = None
    blank: bool = False


@record
class _Header:
    """names: as written. columns: field of Epoch -> (index, factor to base units). clock: the column of the time, where it
    may count from the start of the training."""

    names: tuple[str, ...]
    delimiter: str
    columns: Mapping[str, tuple[int, float]]
    clock: str | None = None


def is_epoch_table(text: str) -> bool:
    """Whether a file's beginning is the header of such a table: ``epoch``, and a loss or an accuracy."""
    header = _header_of(next((line for line in text.removeprefix("\ufeff").splitlines() if line.strip()), ""))
    return header is not None and any(name in header.columns for name in _RESULTS)


def read_epoch_table(path: Path) -> EpochTable:
    """Read the rows of a file. Raises DataError with file and line: no text, no header, rows of another table."""
    table = _Reading(path)
    with reading(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape") as text:
        for line in table.lines(text):
            table.take(line)
            if len(table.epochs) + len(table.rows) > MAX_ROWS:
                raise DataError(
                    f"{path}:{table.line}: more than {MAX_ROWS} rows",
                    why="one row per epoch is expected; this looks like one row per step, or like a log",
                    fix="pass the file with one row per epoch",
                )
    return table.finish()


def _header_of(line: str) -> _Header | None:
    """Read a line as a header; None where it is none (no column is called ``epoch``)."""
    delimiter = delimiter_of(line)
    names = _split_cells(line, delimiter)
    by_role = {role: (at, meaning.scale or 1.0) for role, (at, meaning) in columns_of(names).by_role.items()}
    if len(names) < 2 or "epoch" not in by_role:
        return None
    time, columns, clock = by_role.get("time_ns"), {"number": by_role["epoch"]}, None
    # `time` may be a clock; `train_time` is an epoch's, ahead of `epoch_time`.
    if duration := time if time and plain(names[time[0]]).startswith("train_time") else by_role.get("epoch_ns"):
        columns["duration_ns"] = duration
    elif time and CLOCK.fullmatch(plain(names[time[0]])):
        clock, columns["duration_ns"] = names[time[0]], time
    columns |= {role: by_role[role] for role in (*_RESULTS, "samples_per_s") if role in by_role}
    return _Header(names=tuple(names), delimiter=delimiter, columns=columns, clock=clock)


def _split_cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line.rstrip("\n")], delimiter=delimiter), [])]


@dataclass(slots=True)
class _Reading:
    """What was read of a file up to a line. rows, cells, more: notes on those that were left out, and on others."""

    path: Path
    line: int = 0
    header: _Header | None = None
    epochs: list[Epoch] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    last_cells: set[str] = field(default_factory=set)
    more: list[str] = field(default_factory=list)
    repeated_headers: int = 0
    clock: str | None = None

    def lines(self, file: TextIO) -> Iterator[str]:
        """Yield the lines that hold something. A tail of zero bytes ends the file."""
        while line := file.readline(MAX_LINE):
            self.line += 1
            blank, long = not line.strip("\0\r\n\t "), len(line) >= MAX_LINE and not line.endswith("\n")
            if "\0" in line and (blank or long):
                self.more.append(f"{self.path}:{self.line}: zero bytes up to the end: what was written there is lost")
                return
            if long and not blank:
                raise DataError(
                    f"{self.path}:{self.line}: a line of more than {MAX_LINE} characters",
                    why="a row of metrics has a few numbers: this is not a CSV of epochs",
                    fix="pass the experiment's metrics.csv",
                )
            if not blank:
                yield line

    def take(self, line: str) -> None:
        """Read one line: the header, a second one, or a row."""
        header, before = _header_of(line), self.header
        if header is None and before is not None:
            self._row(before, line)
            return
        header = self._checked(header, line)
        if before is not None:
            self.repeated_headers += 1
            changed = "" if header.names == before.names else ", with other columns"
            self.more.append(f"{self.path}:{self.line}: a second header{changed}: another job began to write")
        self.header = header

    def _checked(self, header: _Header | None, line: str) -> _Header:
        """Return a header. Raises DataError for none, and for a column that is read and has another of its name."""
        where, fix = f"{self.path}:{self.line}", "pass the experiment's metrics.csv"
        if _NO_TEXT.search(line):
            why = "there are control characters or bytes that are not UTF-8 in the header"
            raise DataError(f"{where}: not text", why=why, fix=fix)
        needed = {*_RESULTS, "duration_ns"} if header is None or header.clock is None else {*_RESULTS}
        if header is None or (self.header is None and not needed & header.columns.keys()):
            raise DataError(
                f"{where}: not the header of a table of epochs",
                why=f"it reads {line.strip()[:80]!r}; 'epoch' and a loss, an accuracy or a time are needed",
                fix="name the columns epoch, train_time, train_loss, train_acc, val_loss, val_acc, samples_per_s",
            )
        names = [plain(name) for name in header.names]
        twice = next((at for at, _ in header.columns.values() if names.count(names[at]) > 1), None)
        if twice is not None:
            raise DataError(
                f"{where}: column {header.names[twice]!r} appears twice in the header",
                why="it is unclear which of the two holds the figures",
                fix="rename or remove one of the columns",
            )
        return header

    def _row(self, header: _Header, line: str) -> None:
        """Read a row of epochs; one that does not fit the header is left out and noted."""
        cells = _split_cells(line, header.delimiter)
        while len(cells) > len(header.names) and not cells[-1]:
            cells.pop()
        if refused := self._refused(header, line, cells):
            self.rows.append(f"{self.path}:{self.line}: {refused}; the row is left out")
            return
        if not line.endswith("\n") and not surely_whole(cells[-1], self.last_cells):
            self.more.append(
                f"{self.path}:{self.line}: the last row {NO_END}: its last cell {cells[-1][:40]!r} may be cut off and is "
                "left out; add a line end where it is whole"
            )
            cells[-1] = ""
        self.last_cells.add(cells[-1])
        self.clock = header.clock
        values: dict[str, Any] = {
            name: self._value(header, index, cells[index], name, scale)
            for name, (index, scale) in header.columns.items()
            if name != "number"
        }
        self.epochs.append(replace(_EPOCH, number=round(bare(cells[header.columns["number"][0]]) or 0), **values))

    def _refused(self, header: _Header, line: str, cells: Sequence[str]) -> str | None:
        """Return why a line is no row of the table; None: it is one."""
        if _NO_TEXT.search(line):
            return "not text"
        if len(cells) != len(header.names):
            cut = "" if line.endswith("\n") else ", and no line end: it was cut off"
            has = counted(len(header.names), "column")
            return f"{counted(len(cells), 'cell')} where the header has {has}{cut}"
        text = cells[header.columns["number"][0]]
        epoch = _plain_number(text)
        if epoch is None or not 0 <= epoch < MOST_EPOCHS or not epoch.is_integer():
            return f"{text[:40]!r} is not an epoch number"
        measured = [cells[index] for name, (index, _) in header.columns.items() if name != "number"]
        zeros = len(measured) > 1 and all(_plain_number(cell) == 0 for cell in measured)
        return f"epoch {epoch:.0f} is filled with zeros" if zeros else None

    def _value(self, header: _Header, index: int, text: str, name: str, scale: float) -> float | None:
        """Return a cell's figure in base units; None, with a note, where it is no possible one."""
        value, why = _plain_number(text), ""
        if value is not None:
            value *= scale
            if header.clock and name == "duration_ns":
                return value if 0 < value <= _LATEST else None
            if name in _RATES and value < LEAST:
                why = ", which was not measured"
            elif name == "duration_ns" and value > MAX_EPOCH_NS:
                why = ", longer than ten years"
            elif abs(value) > MAX_VALUE:
                why = ", not a training figure"
            else:
                return value
        if text and not (header.clock and name == "duration_ns"):
            self.cells.append(f"{self.path}:{self.line}: {header.names[index]} is {text[:40]!r}{why}; taken as unknown")
        return None

    def finish(self) -> EpochTable:
        """Return the table. Raises DataError where most rows are none of it."""
        path, epochs, empty = self.path, self.epochs, None
        if (refused := len(self.rows)) > len(epochs):
            raise DataError(
                f"{path}: {refused} of {refused + len(epochs)} rows do not fit the header",
                why="\n    ".join(self.rows[:NAMED_ROWS]),
                fix="copy the file again; if two programs wrote it, separate their rows",
            )
        if self.header is None:
            why = "it holds nothing but zero bytes" if self.more else "the run exited before it wrote a header"
            empty = f"{path}: empty: {why}"
        elif not epochs:
            empty = f"{path}: no finished epoch: the file holds only its header"
        elif "step" in map(plain, self.header.names) and len({epoch.number for epoch in epochs}) < len(epochs):
            epochs = _merged_epochs(epochs)
            self.more.append(f"{path}: rows are per step: rows of one epoch are joined, the last value counts")
        numbers, times = [epoch.number for epoch in epochs], [epoch.duration_ns for epoch in epochs]
        order, remarks = epoch_order(numbers), []
        if self.clock is not None:
            own = None if order.sentence else own_times(self.clock, numbers, times)
            remarks = [f"{path.name}: {own[1]}"] if own else []
            times = own[0] if own else [None] * len(times)
        elif order.sentence is None and is_clock([time for time in times if time is not None]):
            times = [None] * len(times)
            self.more.append(
                f"{path}: the time of an epoch grows from row to row: it may count from the start of the training, and "
                "is left out"
            )
        epochs = [replace(epoch, duration_ns=time) for epoch, time in zip(epochs, times, strict=True)]
        epochs, notes = _epochs_as_fractions(path, epochs)
        return EpochTable(
            epochs=tuple(epochs),
            order=order,
            repeated_headers=self.repeated_headers,
            notes=(
                *_first_rows_notes(path, self.rows, "row", "left out"),
                *_first_rows_notes(path, self.cells, "cell", "taken as unknown"),
                *self.more,
                *notes,
            ),
            remarks=tuple(remarks),
            empty=empty,
            blank=self.header is None,
        )


def _first_rows_notes(path: Path, notes: Sequence[str], what: str, became: str) -> list[str]:
    more = len(notes) - NAMED_ROWS
    return [*notes[:NAMED_ROWS], *[f"{path}: {counted(more, f'more {what}')} {became}"] * (more > 0)]


def _plain_number(text: str) -> float | None:
    """Read a number without a unit and without commas, of which one may be a decimal point."""
    return None if "," in text else bare(text)


def _merged_epochs(epochs: Sequence[Epoch]) -> list[Epoch]:
    """Return one Epoch for each number, with the last known value of several rows."""
    by_number: dict[int, Epoch] = {}
    for epoch in epochs:
        there: dict[str, Any] = {
            name: value for name in (*_RESULTS, *_RATES) if (value := getattr(epoch, name)) is not None
        }
        by_number[epoch.number] = replace(by_number.get(epoch.number, epoch), **there)
    return list(by_number.values())


def _epochs_as_fractions(path: Path, epochs: Sequence[Epoch]) -> tuple[list[Epoch], list[str]]:
    """Turn accuracies into fractions: a column with values from above 1 up to 100 is in per cent, others are unknown."""
    notes = []
    read = list(epochs)
    for name in ("train_accuracy", "validation_accuracy"):
        all_ = [getattr(e, name) for e in read]
        values = [value for value in all_ if value is not None]
        if not values or 0 <= min(values) <= max(values) <= 1:
            continue
        percent = min(values) >= 0 and 1 < max(values) <= 100
        what = name.replace("_", " ")
        notes.append(
            f"{path}: {what} goes up to {max(values):.4g}: read as per cent"
            if percent
            else f"{path}: {what} is between {min(values):.4g} and {max(values):.4g}, not an accuracy; taken as unknown"
        )
        shares: list[dict[str, Any]] = [{name: None if value is None or not percent else value / 100} for value in all_]
        read = [replace(e, **share) for e, share in zip(read, shares, strict=True)]
    return read, notes
