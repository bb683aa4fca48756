"""Foreign text tables: reading them whole, cells into numbers, complaints with file and line."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.store.reader import read_bytes

MAX_BYTES = 64 << 20
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*)(?:\.\d*)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table. number: line in the file, from 1."""

    source: str
    number: int
    cells: tuple[str, ...]

    @property
    def where(self) -> str:
        return f"{self.source}:{self.number}"

    def positive(self, column: int, name: str) -> float:
        """A finite number above 0; commas between thousands are allowed."""
        value = self.amount(column, name)
        if value == 0:
            raise self.wrong(column, name, "a number above 0")
        return value

    def amount(self, column: int, name: str) -> float:
        """A finite number, 0 or more."""
        text = self.cells[column].strip()
        value = float(text.replace(",", "")) if _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value) or value < 0:
            raise self.wrong(column, name, "a number, 0 or more")
        return value

    def count(self, column: int, name: str) -> int:
        """A whole number of 1 or more."""
        text = self.cells[column].strip().replace(",", "")
        if not text.isdecimal() or len(text) > 18 or int(text) == 0:
            raise self.wrong(column, name, "a whole number of 1 or more")
        return int(text)

    def wrong(self, column: int, name: str, expected: str) -> DataError:
        return DataError(
            f"{self.where}: {name} is {self.cells[column].strip()[:60]!r}",
            why=f"expected {expected}",
            fix="write the file again with the tool that made it",
        )


def read_text(path: Path) -> str:
    """A text file's content. Raises DataError: not readable, empty, not text, or far too large for a table."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error
    if size > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes", why=f"no table of results is larger than {MAX_BYTES} bytes")
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file", why=f"byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise DataError(f"{path}: empty", fix="copy the file again")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}:{line}: damaged", why="there are zero bytes in it", fix="copy the file again")
    return text


def read_csv(path: Path) -> tuple[tuple[str, ...], tuple[Line, ...]]:
    """(header, rows) of a comma-separated file; every row has as many cells as the header. Raises DataError."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows: list[Line] = []
    try:
        rows += [Line(str(path), reader.line_num, tuple(row)) for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not readable as CSV", why=str(error)) from error
    header, body = rows[0].cells, tuple(rows[1:])
    for row in body:
        require_cells(row, len(header))
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise DataError(f"{path}:1: a column stands twice in the header", why=f"it is: {', '.join(names)}")
    return tuple(names), body


def require_cells(row: Line, expected: int) -> None:
    """Raises DataError where a row has more or fewer cells than its header."""
    if len(row.cells) != expected:
        raise DataError(
            f"{row.where}: {len(row.cells)} cells, and the header has {expected}",
            why="the file was cut or mixed",
            fix="copy the file again",
        )


def column(header: Sequence[str], name: str, source: str) -> int:
    """Index of a column. Raises DataError where there is none."""
    if name not in header:
        raise DataError(f"{source}: no column {name!r}", why=f"there are: {', '.join(header)}")
    return list(header).index(name)
