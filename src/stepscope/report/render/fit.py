"""Making a table fit a width: state constant columns once, shorten, then leave columns out and say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from stepscope.core.dataclass import dataclass
from stepscope.report.table import Column, Table

GAP = 2
MIN_NAME = 24
"""A name column is wrapped to no less than this before other columns are left out, ..."""
LAST_NAME = 12
"""... and to no less than this when nothing else can go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumns:
    """What is shown: column index, title and width in characters; ``compact`` forms are used when True.

    stated: columns with one value throughout, said once instead. dropped: columns left out.
    """

    indices: tuple[int, ...]
    titles: tuple[str, ...]
    widths: tuple[int, ...]
    compact: bool
    gap: int = GAP
    stated: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return sum(self.widths) + self.gap * max(0, len(self.widths) - 1)


def fit(table: Table, width: int) -> ShownColumns:
    """The richest layout of the ungrouped columns that is at most ``width`` characters wide.

    In this order: everything; constant columns stated once; names wrapped; compact forms; columns left out
    one by one. Columns without any known value are always left out. When nothing else helps, names are
    wrapped narrowly with single spaces between columns; lines may then still be longer than ``width``.
    """
    columns = table.columns
    shown = worth_showing(table)
    constant = [i for i in shown if columns[i].role == "identity" and _is_constant(table, i)]
    everything = _layout(table, shown, compact=False)
    if everything.width <= width:
        return everything
    lean = [i for i in shown if i not in constant]
    by_drop = sorted((i for i in lean if columns[i].drop), key=lambda i: columns[i].drop)
    for count in range(len(by_drop) + 1):
        kept = [i for i in lean if i not in by_drop[:count]]
        for compact in (False, True):
            layout = _layout(table, kept, compact=compact, stated=constant, dropped=by_drop[:count])
            layout = _narrowed(table, layout, width, least=MIN_NAME)
            if layout.width <= width:
                return layout
    kept = [i for i in lean if i not in by_drop]
    tight = replace(_layout(table, kept, compact=True, stated=constant, dropped=by_drop), gap=1)
    return _narrowed(table, tight, width, least=LAST_NAME)


def worth_showing(table: Table) -> list[int]:
    """Columns beside those of group values: that say which row this is, and measured ones with a known value."""
    return [
        i
        for i, c in enumerate(table.columns)
        if c.role == "identity" or (c.role == "measured" and _has_value(table, i))
    ]


def said_once(table: Table, layout: ShownColumns) -> str:
    """``ranks 2, type float32`` of the columns that are stated once; empty without any."""
    if not table.rows:
        return ""
    return ", ".join(f"{table.columns[i].title} {table.rows[0].values[i].text}" for i in layout.stated)


def left_out(table: Table, layout: ShownColumns) -> str:
    """Titles of the columns without room; empty without any."""
    return ", ".join(table.columns[i].title for i in layout.dropped)


def cell_text(table: Table, row: int, column: int, *, compact: bool) -> str:
    value = table.rows[row].values[column]
    return value.compact if compact and value.compact is not None else value.text


def _layout(
    table: Table, indices: Sequence[int], *, compact: bool, stated: Sequence[int] = (), dropped: Sequence[int] = ()
) -> ShownColumns:
    titles = [_title(table.columns[i], compact) for i in indices]
    return ShownColumns(
        indices=tuple(indices),
        titles=tuple(titles),
        widths=tuple(_width(table, i, t, compact) for i, t in zip(indices, titles, strict=True)),
        compact=compact,
        stated=tuple(stated),
        dropped=tuple(dropped),
    )


def _width(table: Table, index: int, title: str, compact: bool) -> int:
    identity = table.columns[index].role == "identity"
    rows = [number for number, row in enumerate(table.rows) if identity or row.failure is None]
    return max(cell_len(title), *(cell_len(cell_text(table, n, index, compact=compact)) for n in rows), 0)


def _narrowed(table: Table, layout: ShownColumns, width: int, *, least: int) -> ShownColumns:
    """``layout`` with its widest name column taken in by what is too much, down to ``least``."""
    names = [p for p, i in enumerate(layout.indices) if table.columns[i].align == "left"]
    if not names or layout.width <= width:
        return layout
    widest = max(names, key=lambda p: layout.widths[p])
    widths = list(layout.widths)
    widths[widest] = max(min(least, widths[widest]), widths[widest] - (layout.width - width))
    return replace(layout, widths=tuple(widths))


def _title(column: Column, compact: bool) -> str:
    return column.short_title if compact and column.short_title else column.title


def _has_value(table: Table, index: int) -> bool:
    return any(row.values[index].raw is not None for row in table.rows if row.failure is None)


def _is_constant(table: Table, index: int) -> bool:
    """Whether a column may be stated once: the same in every row, and not what rows are told apart by at
    sight.
    """
    return not table.columns[index].lead and len({row.values[index].text for row in table.rows}) == 1
