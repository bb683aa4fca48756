"""A table as columns of raw values: for notebooks, and for whatever else in Python takes tables (Arrow, pandas, polars)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import UsageError
from stepscope.core.words import counted, unknown
from stepscope.report.table import (
    Column,
    Format,
    Raw,
    Table,
    duration,
    figure,
    frame_library,
    group_column,
    tabled,
    text,
    whole,
)

Values = list[Raw] | NDArray[Any]

SHOWN_ROWS = 20
"""Rows that a notebook shows of a frame."""

WIDTH = 120
"""Characters of a line where a frame is printed."""

_STYLES = {
    "l": "text-align:left;white-space:nowrap",
    "l w": "text-align:left;min-width:15em",
    "r": "white-space:nowrap",
    "r w": "white-space:nowrap",
}
"""How a notebook shows cells by their first classes: of a sheet it takes nothing where it does not trust."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """Columns of equal length by name, in order: ``frame["rank"]`` is a column, ``frame[0]`` a row, loops go over rows.

    Values are raw, in base units (times in ns, sizes in bytes, shares from 0 to 1); what is unknown is None. Libraries
    that take Arrow's streams read a frame as it is: ``polars.DataFrame(frame)``, ``pyarrow.table(frame)``.

    units: of columns that have one. table: how the rows are written for people; None: as their values are.
    """

    key: str
    title: str
    columns: Mapping[str, Values]
    units: Mapping[str, str]
    table: Table | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Raw]]:
        for values in zip(*map(plain_values, self.columns.values()), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    @overload
    def __getitem__(self, item: str) -> Values: ...
    @overload
    def __getitem__(self, item: int) -> dict[str, Raw]: ...
    @overload
    def __getitem__(self, item: slice) -> Frame: ...
    def __getitem__(self, item: str | int | slice) -> Values | dict[str, Raw] | Frame:
        """Return a column by its name, a row by its number, or the rows of a slice. Raises UsageError for an unknown name,
        IndexError for a row that is not there."""
        if isinstance(item, str):
            if item not in self.columns:
                raise UsageError(unknown("column", item, tuple(self.columns)))
            return self.columns[item]
        if isinstance(item, int):
            row = range(len(self))[item]
            return {name: plain_values(values[row : row + 1])[0] for name, values in self.columns.items()}
        return replace(
            self,
            columns={name: values[item] for name, values in self.columns.items()},
            table=None if self.table is None else replace(self.table, rows=self.table.rows[item]),
        )

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; whole numbers stay so beside None (Int64). Raises MissingError without pandas."""
        pandas = frame_library("pandas")
        columns = dict(self.columns)
        for name, values in columns.items():
            if isinstance(values, list) and {type(value) for value in values} == {int, type(None)}:
                columns[name] = pandas.array(values, dtype="Int64")
        return pandas.DataFrame(columns)

    def to_polars(self) -> Any:
        """Return a polars DataFrame. Raises MissingError without polars."""
        return frame_library("polars").DataFrame(dict(self.columns), strict=False)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the columns as an Arrow stream (the PyCapsule interface); numbers are not copied."""
        import nanoarrow as arrow  # 40 ms, which no command needs

        arrays = {name: arrow.c_array(*_arrow(arrow, values)) for name, values in self.columns.items()}
        schema = arrow.struct({name: array.schema for name, array in arrays.items()})
        whole = arrow.c_array_from_buffers(schema, len(self), [None], children=list(arrays.values()))
        return arrow.c_array_stream(whole).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        from stepscope.report.render.terminal import render_ascii

        return f"{self.title}\n{render_ascii(self._first(SHOWN_ROWS), width=WIDTH)}{self._more()}"

    def _repr_html_(self) -> str:
        from markupsafe import escape

        from stepscope.report.render.files import as_html

        table = self._first(SHOWN_ROWS)
        label = f"stepscope-{self.key}"
        filled = (
            any(row.failure or row.values[i].raw is not None for row in table.rows) for i in range(len(table.columns))
        )
        shown = [i for i, is_filled in enumerate(filled) if is_filled or table.columns[i].role in ("lead", "group")]
        body = re.sub(r' class="([lr](?: w)?)', _styled, as_html(table, shown, label))
        notes = (*filter(None, [self._more()]), *table.footnotes, *table.notes)
        below = "".join(f"<div><small>{escape(note)}</small></div>" for note in notes)
        return f'<div style="overflow-x:auto"><b id="{escape(label)}">{escape(self.title)}</b>{body}{below}</div>'

    def _first(self, count: int) -> Table:
        first = self[:count]
        if first.table is not None:
            return first.table
        columns = (Column(name, name, itemgetter(name), first._format(name)) for name in self.columns)
        return tabled(self.key, self.title, first, *columns)

    def _format(self, name: str) -> Format:
        """Return how a column without a way of its own is written; a point in time is no duration."""
        kinds = {type(value) for value in plain_values(self.columns[name])} - {type(None)}
        if not kinds <= {int, float}:
            return text
        lasts = self.units.get(name) == "ns" and not name.startswith("ts")
        return duration if lasts else figure if float in kinds else whole

    def _more(self) -> str:
        more = len(self) - SHOWN_ROWS
        return f"{counted(more, 'more row')}" if more > 0 else ""


def frame_of(table: Table) -> Frame:
    """Return a table's raw values as columns."""
    return Frame(
        key=table.key,
        title=table.title,
        columns={c.key: [row.values[i].raw for row in table.rows] for i, c in enumerate(table.columns)},
        units={c.key: c.unit for c in table.columns if c.unit},
        table=table,
    )


def stacked(frames: Iterable[Frame]) -> Frame:
    """Return the rows of frames of one kind below each other; what one of them lacks is None there."""
    every = tuple(frames)
    if len(every) == 1:
        return every[0]
    columns: dict[str, Values] = {}
    for name in dict.fromkeys(name for frame in every for name in frame.columns):
        parts = [frame.columns.get(name, [None] * len(frame)) for frame in every]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        whole = len(arrays) == len(parts)
        columns[name] = np.concatenate(arrays) if whole else [value for p in parts for value in _python(p)]
    units = {name: unit for frame in every for name, unit in frame.units.items()}
    return Frame(key=every[0].key, title=every[0].title, columns=columns, units=units)


def joined(key: str, frames: Mapping[str, Frame]) -> Frame:
    """Return the rows of all frames; where there are several, a first column names each."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    every = stacked(replace(f, columns={key: [name] * len(f), **f.columns}, table=None) for name, f in frames.items())
    tables = {name: frame.table for name, frame in frames.items() if frame.table is not None}
    if len(tables) < len(frames) or any(
        [key, *(c.key for c in t.columns)] != [*every.columns] for t in tables.values()
    ):
        return every
    head = group_column(key, key, str)
    rows = (replace(row, values=(head.value(name), *row.values)) for name, t in tables.items() for row in t.rows)
    first = next(iter(tables.values()))
    notes = tuple(dict.fromkeys(note for t in tables.values() for note in t.notes))
    return replace(every, table=replace(first, columns=(head, *first.columns), rows=tuple(rows), notes=notes))


def _styled(classes: re.Match[str]) -> str:
    return f' style="{_STYLES[classes[1]]}"{classes[0]}'


def plain_values(values: Values) -> list[Raw]:
    """Return values of Python, None where there is no number."""
    return [None if value != value else value for value in _python(values)]


def _python(values: Values) -> list[Raw]:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _arrow(arrow: Any, values: Values) -> tuple[Any, Any]:
    """Return a column as Arrow takes it, and its type there: a column of several types is text, a number beside it too."""
    if isinstance(values, np.ndarray):
        return values, None
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} and kinds:
        return values, arrow.bool_()
    if kinds == {int}:
        return values, arrow.int64()
    if kinds and kinds <= {int, float}:
        return [None if value is None else float(value) for value in values], arrow.float64()
    return [None if value is None else str(value) for value in values], arrow.string()
