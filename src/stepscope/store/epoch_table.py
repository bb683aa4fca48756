"""A CSV with one row per epoch: columns under their usual names, what is wrong with the rows, and what the order of the
epochs shows: one job, one that was started again, or two at the same time.

Read line by line: memory is bounded by ``MAX_ROWS`` whatever the file's size.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.core.units import format_duration
from stepscope.core.words import counted, listed, plural
from stepscope.records.training import Epoch
from stepscope.store.columns import Columns, bare, columns_of, plain
from stepscope.store.log_lines import NO_END
from stepscope.store.tables import surely_whole

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
        twice = f"{_ranges(self.duplicates)} appear more than once" if self.duplicates else "epochs go backwards"
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
        owner = _owner(number, last, owners[-1] if owners else None)
        if owner == len(last):
            last.append(number)
        last[owner] = number
        owners.append(owner)
    switches = sum(a != b for a, b in pairwise(owners))
    counts = Counter(numbers)
    return EpochOrder(
        duplicates=tuple(sorted(number for number, times in counts.items() if times > 1)),
        series=len(last),
        alternating=len(last) > 1 and switches > len(last) - 1,
        backwards=sum(b <= a for a, b in pairwise(numbers)),
    )


def _owner(number: int, last: Sequence[int], current: int | None) -> int:
    """Return the index of the series that ``number`` continues; ``len(last)`` for a new one."""
    latest_first = sorted(range(len(last)), key=lambda i: i != current)
    for index in latest_first:
        if last[index] == number - 1:
            return index
    below = [index for index in latest_first if last[index] < number]
    if not below and current is not None and len(last) >= MAX_SERIES:
        return current
    return max(below, key=lambda i: last[i], default=len(last))


def _ranges(numbers: Sequence[int]) -> str:
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
DELIMITERS = ",;\t"

ROLES: Mapping[str, tuple[str, ...]] = {
    "number": ("epoch",), "duration_ns": ("time_ns", "epoch_ns"), "train_loss": ("train_loss",),
    "train_accuracy": ("train_accuracy",), "validation_loss": ("validation_loss",),
    "validation_accuracy": ("validation_accuracy",), "samples_per_s": ("samples_per_s",),
}  # fmt: skip
"""Field of Epoch -> what its column means, the first that is there counts (``_columns``)."""

_RESULTS = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
_PERCENT = ("train_accuracy", "validation_accuracy")
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


@dataclass(slots=True)
class _Reading:
    path: Path
    epochs: list[Epoch] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    last_cells: set[str] = field(default_factory=set)
    more: list[str] = field(default_factory=list)
    repeated_headers: int = 0
    clock: str | None = None
    remarks: list[str] = field(default_factory=list)

    def refuse_row(self, line: int, why: str) -> None:
        self.rows.append(f"{self.path}:{line}: {why}; the row is left out")

    def refuse_cell(self, line: int, why: str) -> None:
        self.cells.append(f"{self.path}:{line}: {why}; taken as unknown")

    def notes(self) -> Iterator[str]:
        for refused, what in (
            (
                self.rows,
                "more row",
            ),
            (self.cells, "more cell"),
        ):
            yield from refused[:NAMED_ROWS]
            if more := len(refused[NAMED_ROWS:]):
                yield f"{self.path}: {counted(more, what)} {'left out' if refused is self.rows else 'taken as unknown'}"
        yield from self.more


def is_epoch_table(text: str) -> bool:
    """Whether a file's beginning is the header of such a table: ``epoch``, and a loss or an accuracy."""
    first = next((line for line in text.removeprefix("\ufeff").splitlines() if line.strip()), "")
    header = _header(first)
    return header is not None and any(name in header.columns for name in _RESULTS)


def read_epoch_table(path: Path) -> EpochTable:
    """Read the rows of a file. Raises DataError with file and line: no text, no header, rows of another table."""
    try:
        with path.open("r", encoding="utf-8", errors="surrogateescape") as file:
            return _read(path, file)
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error


def _read(path: Path, file: TextIO) -> EpochTable:
    reading = _Reading(path)
    lines = _lines(path, file, reading)
    first = next(lines, None)
    if first is None:
        why = "it holds nothing but zero bytes" if reading.more else "the run exited before it wrote a header"
        return replace(_table(reading, per_step=False, empty=f"{path}: empty: {why}"), blank=True)
    header = _first_header(path, *first)
    _refuse_twice(path, first[0], header)
    for number, line in lines:
        again = _header(line)
        if again is not None:
            _refuse_twice(path, number, again)
            header, before = again, header
            reading.repeated_headers += 1
            changed = "" if again.names == before.names else ", with other columns"
            reading.more.append(f"{path}:{number}: a second header{changed}: another job began to write")
        else:
            _row(reading, header, number, line)
        if len(reading.epochs) + len(reading.rows) > MAX_ROWS:
            raise DataError(
                f"{path}:{number}: more than {MAX_ROWS} rows",
                why="one row per epoch is expected; this looks like one row per step, or like a log",
                fix="pass the file with one row per epoch",
            )
    if (refused := len(reading.rows)) > len(reading.epochs):
        raise DataError(
            f"{path}: {refused} of {refused + len(reading.epochs)} rows do not fit the header",
            why="\n    ".join(reading.rows[:NAMED_ROWS]),
            fix="copy the file again; if two programs wrote it, separate their rows",
        )
    empty = None if reading.epochs else f"{path}: no finished epoch: the file holds only its header"
    return _table(reading, per_step="step" in map(plain, header.names), empty=empty)


def _refuse_twice(path: Path, line: int, header: _Header) -> None:
    """Raises DataError where a column that is read has another of its name, which may hold other figures."""
    names = [plain(name) for name in header.names]
    for index, _ in header.columns.values():
        if names.count(names[index]) > 1:
            raise DataError(
                f"{path}:{line}: column {header.names[index]!r} appears twice in the header",
                why="it is unclear which of the two holds the figures",
                fix="rename or remove one of the columns",
            )


def _lines(path: Path, file: TextIO, reading: _Reading) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold something, with their numbers. A tail of zero bytes ends the file."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        blank, long = not line.strip("\0\r\n\t "), len(line) >= MAX_LINE and not line.endswith("\n")
        if "\0" in line and (blank or long):
            reading.more.append(f"{path}:{number}: zero bytes up to the end: what was written there is lost")
            return
        if long and not blank:
            raise DataError(
                f"{path}:{number}: a line of more than {MAX_LINE} characters",
                why="a row of metrics has a few numbers: this is not a CSV of epochs",
                fix="pass the experiment's metrics.csv",
            )
        if not blank:
            yield number, line


def _first_header(path: Path, number: int, line: str) -> _Header:
    if line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise DataError(f"{path}:{number}: UTF-16 text", fix="save the file as UTF-8")
    if line.startswith("\x1f\udc8b"):
        raise DataError(f"{path}: packed with gzip", fix="unpack it (gunzip) and pass the CSV")
    if _NO_TEXT.search(line):
        raise DataError(
            f"{path}:{number}: not text",
            why="there are control characters or bytes that are not UTF-8 in the header",
            fix="pass the experiment's metrics.csv",
        )
    header = _header(line.removeprefix("\ufeff"))
    needed = (*_RESULTS, *["duration_ns"] * (header is None or header.clock is None))
    if header is None or not any(name in header.columns for name in needed):
        column_names = "epoch, train_time, train_loss, train_acc, val_loss, val_acc, samples_per_s"
        raise DataError(
            f"{path}:{number}: not the header of a table of epochs",
            why=f"it reads {line.strip()[:80]!r}; 'epoch' and a loss, an accuracy or a time are needed",
            fix=f"name the columns {column_names}",
        )
    return header


def _header(line: str) -> _Header | None:
    """Read a line as a header; None where it is none (no column is called ``epoch``)."""
    for delimiter in DELIMITERS:
        names = _split(line, delimiter)
        recognised = columns_of(names)
        if len(names) < 2 or not recognised.has("epoch"):
            continue
        columns = {
            field_name: (index, meaning.scale or 1.0)
            for field_name, roles in ROLES.items()
            for role in reversed(roles)
            if role in recognised.by_role and _counts(role, recognised)
            for index, meaning in (recognised.by_role[role],)
        }
        clock = None
        if "duration_ns" not in columns and "time_ns" in recognised.by_role:
            index, meaning = recognised.by_role["time_ns"]
            if CLOCK.fullmatch(plain(names[index])):
                clock, columns["duration_ns"] = names[index], (index, meaning.scale or 1.0)
        return _Header(names=tuple(names), delimiter=delimiter, columns=columns, clock=clock)
    return None


def _counts(role: str, columns: Columns) -> bool:
    """Return whether a column is used: ``time`` may be a clock; ``train_time`` is an epoch's, ahead of ``epoch_time``."""
    return role != "time_ns" or plain(columns.names[columns.by_role[role][0]]).startswith("train_time")


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.rstrip("\n")], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _row(reading: _Reading, header: _Header, number: int, line: str) -> None:
    if "\0" in line:
        reading.refuse_row(number, "zero bytes in it")
        return
    if _NO_TEXT.search(line):
        reading.refuse_row(number, "not text")
        return
    cells = _split(line, header.delimiter)
    while len(cells) > len(header.names) and not cells[-1]:
        cells.pop()
    if len(cells) != len(header.names):
        cut = "" if line.endswith("\n") else ", and no line end: it was cut off"
        has = counted(len(header.names), "column")
        reading.refuse_row(number, f"{counted(len(cells), 'cell')} where the header has {has}{cut}")
        return
    epoch = _epoch_number(cells[header.columns["number"][0]])
    if epoch is None:
        reading.refuse_row(number, f"{cells[header.columns['number'][0]][:40]!r} is not an epoch number")
        return
    if not line.endswith("\n") and not surely_whole(cells[-1], reading.last_cells):
        reading.more.append(
            f"{reading.path}:{number}: the last row {NO_END}: its last cell {cells[-1][:40]!r} may be cut off and is left "
            "out; add a line end where it is whole"
        )
        cells[-1] = ""
    reading.last_cells.add(cells[-1])
    measured = {name: place for name, place in header.columns.items() if name != "number"}
    if len(measured) > 1 and all(_number(cells[index]) == 0 for index, _ in measured.values()):
        reading.refuse_row(number, f"epoch {epoch} is filled with zeros")
        return
    reading.clock = header.clock
    values: dict[str, Any] = {
        name: _clock(cells[index], scale)
        if header.clock and name == "duration_ns"
        else _value(reading, number, header.names[index], cells[index], name, scale)
        for name, (index, scale) in measured.items()
    }
    reading.epochs.append(replace(_EPOCH, number=epoch, **values))


def _epoch_number(text: str) -> int | None:
    number = _number(text)
    return int(number) if number is not None and 0 <= number < MOST_EPOCHS and number == int(number) else None


def _number(text: str) -> float | None:
    """Read a number without a unit and without commas, of which one may be a decimal point."""
    return None if "," in text else bare(text)


def _value(reading: _Reading, line: int, column: str, text: str, name: str, scale: float) -> float | None:
    if not text:
        return None
    value, why = _number(text), ""
    if value is not None:
        if name in ("duration_ns", "samples_per_s") and value * scale < LEAST:
            why = ", which was not measured"
        elif name == "duration_ns" and value * scale > MAX_EPOCH_NS:
            why = ", longer than ten years"
        elif abs(value) > MAX_VALUE:
            why = ", not a training figure"
        else:
            return value * scale
    reading.refuse_cell(line, f"{column} is {text[:40]!r}{why}")
    return None


def _clock(text: str, scale: float) -> float | None:
    value = _number(text)
    return value * scale if value is not None and 0 < value * scale <= _LATEST else None


def _differences(reading: _Reading, epochs: Sequence[Epoch], order: EpochOrder) -> Sequence[Epoch]:
    """Return epochs with their own times where a column counts from the start of the training, else without any."""
    numbers, times = [epoch.number for epoch in epochs], [epoch.duration_ns for epoch in epochs]
    own = None if order.sentence else own_times(reading.clock, numbers, times)
    if own is None:
        return [replace(epoch, duration_ns=None) for epoch in epochs]
    reading.remarks.append(f"{reading.path.name}: {own[1]}")
    return [replace(epoch, duration_ns=time) for epoch, time in zip(epochs, own[0], strict=True)]


def _table(reading: _Reading, *, per_step: bool, empty: str | None) -> EpochTable:
    epochs: Sequence[Epoch] = reading.epochs
    if per_step and len({e.number for e in epochs}) < len(epochs):
        epochs = _merged(epochs)
        reading.more.append(f"{reading.path}: rows are per step: rows of one epoch are joined, the last value counts")
    order = epoch_order([e.number for e in epochs])
    if reading.clock is not None:
        epochs = _differences(reading, epochs, order)
    elif order.sentence is None and is_clock([e.duration_ns for e in epochs if e.duration_ns is not None]):
        epochs = [replace(epoch, duration_ns=None) for epoch in epochs]
        reading.more.append(
            f"{reading.path}: the time of an epoch grows from row to row: it may count from the start of the training, and "
            "is left out"
        )
    epochs, notes = _fractions(reading.path, epochs)
    return EpochTable(
        epochs=tuple(epochs),
        order=order,
        repeated_headers=reading.repeated_headers,
        notes=tuple(chain(reading.notes(), notes)),
        remarks=tuple(reading.remarks),
        empty=empty,
    )


def _merged(epochs: Sequence[Epoch]) -> list[Epoch]:
    """Return one Epoch for each number, with the last known value of several rows."""
    by_number: dict[int, Epoch] = {}
    for epoch in epochs:
        there: dict[str, Any] = {name: value for name in ROLES if (value := getattr(epoch, name)) is not None}
        by_number[epoch.number] = replace(by_number.get(epoch.number, epoch), **there)
    return list(by_number.values())


def _fractions(path: Path, epochs: Sequence[Epoch]) -> tuple[list[Epoch], list[str]]:
    """Turn accuracies into fractions: a column with values from above 1 up to 100 is in per cent, others are unknown."""
    notes = []
    read = list(epochs)
    for name in _PERCENT:
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
