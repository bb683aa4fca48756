"""What a table is, before anyone decides how it looks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stepscope.core.errors import MissingError

Tone = Literal["plain", "good", "warn", "bad", "dim"]
Raw = str | int | float | bool | None

UNKNOWN = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    unit: of the raw values (``ns``, ``bytes``, ``1/s``, empty for names and pure numbers).
    role: ``group`` values head a block of rows; ``identity`` values say which row this is; ``measured`` ones
    are
        replaced by the reason when a row failed.
    drop: order in which a narrow display leaves columns out, 1 first; 0 never. Identity columns with one
    value
        throughout may always be stated once instead.
    """

    key: str
    title: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    role: Literal["group", "identity", "measured"] = "measured"
    short_title: str | None = None
    drop: int = 0
    lead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One cell of a table: text for people, its compact form for narrow displays, and the raw value (None:
    unknown).
    """

    text: str
    raw: Raw
    compact: str | None = None
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Values in the order of columns; ``failure`` (status and short reason) stands for the measured ones."""

    values: tuple[Value, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one table, groups adjacent. footnotes: how to read it; notes: what is odd about single rows."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """The raw values as a pandas DataFrame (unknown: None). Raises MissingError without pandas."""
        return _frame_library("pandas").DataFrame(self._raw())

    def to_polars(self) -> Any:
        """The raw values as a polars DataFrame (unknown: null). Raises MissingError without polars."""
        return _frame_library("polars").DataFrame(self._raw(), strict=False)

    def _raw(self) -> dict[str, list[Raw]]:
        return {c.key: [row.values[i].raw for row in self.rows] for i, c in enumerate(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """A registered table: the records it needs (``rows``, ...) and ``build``, which takes them in that
    order.
    """

    key: str
    title: str
    needs: tuple[str, ...]
    build: Callable[..., Table]


def _frame_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(
            f"{name} is not installed", why="tables convert to frames with it", fix=f"pip install {name}"
        ) from error


def unknown() -> Value:
    """Not measured, or not to be had; never 0."""
    return Value(text=UNKNOWN, raw=None, tone="dim")


def grouped(table: Table) -> tuple[tuple[tuple[Value, ...], tuple[Row, ...]], ...]:
    """Blocks of consecutive rows with equal group values: (group values, rows)."""
    indices = [i for i, column in enumerate(table.columns) if column.role == "group"]
    blocks: list[tuple[tuple[Value, ...], list[Row]]] = []
    for row in table.rows:
        head = tuple(row.values[i] for i in indices)
        if not blocks or blocks[-1][0] != head:
            blocks.append((head, []))
        blocks[-1][1].append(row)
    return tuple((head, tuple(rows)) for head, rows in blocks)


def select(table: Table, keep: Callable[[Column], bool]) -> tuple[tuple[int, Column], ...]:
    """Index and column of the columns that ``keep`` accepts."""
    picked: list[tuple[int, Column]] = [(i, c) for i, c in enumerate(table.columns) if keep(c)]
    return tuple(picked)
