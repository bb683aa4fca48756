"""What a table is, before anyone decides how it looks: columns that know how to get and to write their values."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import partial
from itertools import groupby
from typing import Any, Literal

from stepscope.core.dataclass import dataclass, record
from stepscope.core.errors import MissingError
from stepscope.core.units import (
    format_bandwidth,
    format_bytes,
    format_bytes_binary,
    format_decimal,
    format_duration,
    format_flops,
    format_microseconds,
    format_number,
    format_percent,
    format_size,
)

Tone = Literal["plain", "good", "warn", "bad", "dim"]
Align = Literal["left", "right"]
Raw = str | int | float | bool | None

UNKNOWN = "–"

ABOVE = "above"
"""Stands for a share of a link that would exceed 100%."""


@dataclass(frozen=True, slots=True)
class Value:
    """One cell of a table: text for people, its compact form for narrow displays, and the raw value (None: unknown)."""

    text: str
    raw: Raw
    compact: str | None = None
    tone: Tone = "plain"


def unknown() -> Value:
    """Return the value of what was not measured, or is not to be had; never 0."""
    return Value(UNKNOWN, None, tone="dim")


@dataclass(frozen=True, slots=True)
class Format:
    """How a raw value is written. unit: of the raw values (``ns``, ``bytes``, ``1/s``, empty for pure numbers)."""

    write: Callable[[Any], str]
    unit: str = ""
    align: Align = "right"

    def __call__(self, raw: Raw, *, tone: Tone = "plain") -> Value:
        if raw is None:
            return unknown()
        return Value(self.write(raw), raw, tone=tone)


text = Format(str, align="left")
whole = Format(str)
number = Format(lambda value: f"{value:,.0f}")
percent = Format(format_percent)
times = Format(lambda ratio: f"{ratio:.2f}x")
figure = Format(format_number)
rate = Format(lambda per_s: format_number(per_s, 3), unit="1/s")
p_value = Format(lambda value: f"{value:.2g}")
duration = Format(format_duration, unit="ns")
size = Format(format_bytes, unit="bytes")
byte_size = Format(format_size, unit="bytes")
binary_size = Format(format_bytes_binary, unit="bytes")
bandwidth = Format(format_bandwidth, unit="1/s")
flops = Format(format_flops, unit="1/s")
microseconds = Format(format_microseconds, unit="ns")
gigabytes = Format(lambda bytes_per_s: format_decimal(bytes_per_s / 1e9), unit="bytes_per_s")
"""GB/s, GB = 1e9, as nccl-tests prints it."""


def wording(words: str | None, raw: Raw = None, *, tone: Tone = "plain", compact: str | None = None) -> Value:
    """Return a text; ``raw`` is what stands in CSV where that is not the same. None: unknown."""
    return unknown() if words is None else Value(words, words if raw is None else raw, tone=tone, compact=compact)


def with_share(ns: float, share: float, tone: Tone = "plain") -> Value:
    """Return a duration and its share of a whole, aligned below each other: ``12.3 ms  39%``."""
    return Value(f"{format_duration(ns)} {format_percent(share):>4}", ns, tone=tone)


def judged(share: float | None, warn: float, bad: float) -> Tone:
    """Return the tone: yellow from ``warn`` on, red from ``bad`` on."""
    if share is None or share < warn:
        return "plain"
    return "bad" if share >= bad else "warn"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    get: a row's item -> its raw value, or a Value where more is to be said than ``format`` knows; or the path to it: names
    of attributes and numbers of places (``1.facts.rank``), which ends where one is unknown. format: raw -> Value.
    role: ``group`` values head a block of rows; ``lead`` and ``identity`` values say which row this is; ``measured`` ones
    are replaced by the reason when a row failed. drop: order in which a narrow display leaves columns out, 1 first; 0 never.
    ``identity`` columns with one value throughout may always be stated once instead, ``lead`` ones never. unit, align: those
    of the format, unless given. short: title in a narrow display.
    """

    key: str
    title: str
    get: Callable[[Any], Raw | Value] | str
    format: Format = text
    _: KW_ONLY
    unit: str = ""
    align: Align | Literal[""] = ""
    role: Literal["group", "lead", "identity", "measured"] = "measured"
    short: str | None = None
    drop: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.unit or self.format.unit)
        object.__setattr__(self, "align", self.align or self.format.align)

    @property
    def names(self) -> bool:
        """Whether its values say which row this is."""
        return self.role in ("lead", "identity")

    def value(self, item: Any) -> Value:
        """Return the cell of one row."""
        content = _value_at(item, self.get) if isinstance(self.get, str) else self.get(item)
        return content if isinstance(content, Value) else self.format(content)


group_column = partial(Column, role="group")
lead_column = partial(Column, role="lead")
identity_column = partial(Column, role="identity")


def _value_at(item: Any, path: str) -> Any:
    for name in path.split("."):
        if item is not None:
            item = item[int(name)] if name.isdigit() else getattr(item, name)
    return item


@record
class Row:
    """Values in the order of columns; ``failure`` (status and short reason) stands for the measured ones."""

    values: tuple[Value, ...]
    failure: str | None = None


@record
class Table:
    """Rows of one table, groups adjacent. footnotes: how to read it; notes: what is odd about single rows."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """Return the raw values as a pandas DataFrame (unknown: None). Raises MissingError without pandas."""
        return frame_library("pandas").DataFrame(self._raw())

    def to_polars(self) -> Any:
        """Return the raw values as a polars DataFrame (unknown: null). Raises MissingError without polars."""
        return frame_library("polars").DataFrame(self._raw(), strict=False)

    def _raw(self) -> dict[str, list[Raw]]:
        return {c.key: [row.values[i].raw for row in self.rows] for i, c in enumerate(self.columns)}


def tabled(
    key: str,
    title: str,
    items: Iterable[Any],
    *columns: Column,
    failure: Callable[[Any], str | None] | None = None,
    footnotes: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Table:
    """Return the table with one row an item.

    failure: why an item has no measured values; footnotes stand under rows only.
    """
    rows = tuple(
        Row(values=tuple(c.value(item) for c in columns), failure=None if failure is None else failure(item))
        for item in items
    )
    return Table(key=key, title=title, columns=columns, rows=rows, footnotes=footnotes if rows else (), notes=notes)


def frame_library(name: str) -> Any:
    """Import a library of data frames. Raises MissingError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        from stepscope.core.installing import install

        raise MissingError(
            f"{name} is not installed", why="tables convert to frames with it", fix=install(name)
        ) from error


def blocks(table: Table) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Group consecutive rows with equal group values: what stands above them, and their numbers."""
    indices = [i for i, column in enumerate(table.columns) if column.role == "group"]
    runs = groupby(range(len(table.rows)), lambda number: tuple(table.rows[number].values[i] for i in indices))
    return tuple((" · ".join(value.text for value in head), tuple(numbers)) for head, numbers in runs)
