"""A table as lines of a given width: rich text for a terminal, ASCII for texts that any mail or printer shows.

Making a table fit a width: state constant columns once, shorten, then leave columns out and say so.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from stepscope.core.dataclass import record
from stepscope.report.table import Table, blocks

GAP = 2
MIN_NAME = 24
"""A name column is wrapped to no less than this before other columns are left out, ..."""
LAST_NAME = 12
"""... and to no less than this when nothing else can go."""


@record
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
    """Return the richest layout of the ungrouped columns that is at most ``width`` characters wide.

    In this order: everything; constant columns stated once; names wrapped; compact forms; columns left out
    one by one. Columns without any known value are always left out. When nothing else helps, names are
    wrapped narrowly with single spaces between columns; lines may then still be longer than ``width``.
    """
    columns = table.columns
    shown = worth_showing(table)
    constant = [i for i in shown if columns[i].names and _is_constant(table, i)]
    everything = _column_layout(table, shown, compact=False)
    if everything.width <= width:
        return everything
    lean = [i for i in shown if i not in constant]
    by_drop = sorted((i for i in lean if columns[i].drop), key=lambda i: columns[i].drop)
    for count in range(len(by_drop) + 1):
        kept = [i for i in lean if i not in by_drop[:count]]
        for compact in (False, True):
            layout = _column_layout(table, kept, compact=compact, stated=constant, dropped=by_drop[:count])
            layout = _narrowed_layout(table, layout, width, least=MIN_NAME)
            if layout.width <= width:
                return layout
    kept = [i for i in lean if i not in by_drop]
    tight = replace(_column_layout(table, kept, compact=True, stated=constant, dropped=by_drop), gap=1)
    return _narrowed_layout(table, tight, width, least=LAST_NAME)


def worth_showing(table: Table) -> list[int]:
    """Return the columns beside those of group values: which say which row this is, or are measured with a known value."""
    return [i for i, c in enumerate(table.columns) if c.names or (c.role == "measured" and _has_value(table, i))]


def said_once(table: Table, layout: ShownColumns) -> str:
    """Write ``ranks 2, type float32`` of the columns that are stated once; empty without any."""
    if not table.rows:
        return ""
    return ", ".join(f"{table.columns[i].title} {table.rows[0].values[i].text}" for i in layout.stated)


def left_out(table: Table, layout: ShownColumns) -> str:
    """Write the titles of the columns without room; empty without any."""
    return ", ".join(table.columns[i].title for i in layout.dropped)


def cell_text(table: Table, row: int, column: int, *, compact: bool) -> str:
    value = table.rows[row].values[column]
    return value.compact if compact and value.compact is not None else value.text


def _column_layout(
    table: Table, indices: Sequence[int], *, compact: bool, stated: Sequence[int] = (), dropped: Sequence[int] = ()
) -> ShownColumns:
    """Return these columns with the widths that their cells need. stated: said once, below; dropped: left out."""
    titles = [c.short if compact and c.short else c.title for c in map(table.columns.__getitem__, indices)]
    return ShownColumns(
        indices=tuple(indices),
        titles=tuple(titles),
        widths=tuple(_column_width(table, i, t, compact) for i, t in zip(indices, titles, strict=True)),
        compact=compact,
        stated=tuple(stated),
        dropped=tuple(dropped),
    )


def _column_width(table: Table, index: int, title: str, compact: bool) -> int:
    identity = table.columns[index].names
    rows = [number for number, row in enumerate(table.rows) if identity or row.failure is None]
    return max(cell_len(title), *(cell_len(cell_text(table, n, index, compact=compact)) for n in rows), 0)


def _narrowed_layout(table: Table, layout: ShownColumns, width: int, *, least: int) -> ShownColumns:
    """Return ``layout`` with its widest name column taken in by what is too much, down to ``least``."""
    names = [p for p, i in enumerate(layout.indices) if table.columns[i].align == "left"]
    if not names or layout.width <= width:
        return layout
    widest = max(names, key=lambda p: layout.widths[p])
    widths = list(layout.widths)
    widths[widest] = max(min(least, widths[widest]), widths[widest] - (layout.width - width))
    return replace(layout, widths=tuple(widths))


def _has_value(table: Table, index: int) -> bool:
    return any(row.values[index].raw is not None for row in table.rows if row.failure is None)


def _is_constant(table: Table, index: int) -> bool:
    """Return whether a column may be stated once: the same in every row, and not what rows are told apart by at
    sight."""
    return table.columns[index].role != "lead" and len({row.values[index].text for row in table.rows}) == 1


_STYLES = {"plain": "", "good": "green", "warn": "yellow", "bad": "red", "dim": "dim"}
_MIN_FAILURE = 30


def render(table: Table, *, width: int, footnotes: bool = True) -> Text:
    """Write ``table`` in lines of at most ``width`` characters where that is possible; styles only where they mean
    something.

    A failed row shows its reason in place of its figures. Columns that found no room are named below the
    table. Without rows only footnotes and notes are shown, if any.
    """
    layout = fit(table, width)
    if not table.rows and (table.footnotes or table.notes):
        return Text("\n").join(_lines_below(table, layout, width, footnotes=footnotes)[1:])
    lines = [_cells_line(layout, table, [(at, title, "bold") for at, title in enumerate(layout.titles)])]
    lines[0].rstrip()
    lines.append(Text("─" * min(width, layout.width), style="dim"))
    for block, (title, numbers) in enumerate(blocks(table)):
        if block:
            lines.append(Text())
        if title:
            lines.append(Text(title, style="bold cyan"))
        for number in numbers:
            lines += _row_lines(table, layout, number, width)
    lines += _lines_below(table, layout, width, footnotes=footnotes)
    return Text("\n").join(lines)


def _cells_line(layout: ShownColumns, table: Table, cells: Iterable[tuple[int, str, str]]) -> Text:
    """Write cells: each the place of its column in ``layout``, a text and a style."""
    line = Text()
    for order, (position, text, style) in enumerate(cells):
        if order:
            line.append(" " * layout.gap)
        align = table.columns[layout.indices[position]].align
        line.append(_aligned_text(text, layout.widths[position], align), style=style)
    return line


def _row_lines(table: Table, layout: ShownColumns, number: int, width: int) -> list[Text]:
    """Return the lines of one row; one that failed says why behind its names."""
    row = table.rows[number]
    failed = row.failure is not None
    positions = [p for p, i in enumerate(layout.indices) if not failed or table.columns[i].names]
    cells = [cell_text(table, number, layout.indices[p], compact=layout.compact) for p in positions]
    wrapped = [
        textwrap.wrap(text, layout.widths[p], break_on_hyphens=False) or [""]
        for text, p in zip(cells, positions, strict=True)
    ]
    used = sum(layout.widths[p] for p in positions) + layout.gap * len(positions)
    reason = textwrap.wrap(row.failure or "", max(_MIN_FAILURE, width - used)) if failed else []
    lines = []
    for depth in range(max(*(len(w) for w in wrapped), len(reason), 1)):
        line = _cells_line(
            layout,
            table,
            [
                (p, parts[depth] if depth < len(parts) else "", _STYLES[row.values[layout.indices[p]].tone])
                for p, parts in zip(positions, wrapped, strict=True)
            ],
        )
        if depth < len(reason):
            line.append(" " * layout.gap)
            line.append(reason[depth], style="red")
        line.rstrip()
        lines.append(line)
    return lines


def _aligned_text(text: str, width: int, align: str) -> str:
    space = " " * max(0, width - cell_len(text))
    return text + space if align == "left" else space + text


def _lines_below(table: Table, layout: ShownColumns, width: int, *, footnotes: bool) -> list[Text]:
    """Return what stands below a table: what all rows share, what is left out, footnotes."""
    lines: list[Text] = []
    if stated := said_once(table, layout):
        lines += _note_lines(f"all rows: {stated}", width, "")
    if names := left_out(table, layout):
        lines += _note_lines(f"no room at this width: {names}", width, "dim")
    if footnotes:
        for text in table.footnotes:
            lines += _note_lines(text, width, "dim")
        for text in table.notes:
            lines += _note_lines(f"! {text}", width, "yellow")
    return [Text(), *lines] if lines else []


def _note_lines(text: str, width: int, style: str) -> list[Text]:
    wrapped = textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
    return [Text(line, style=style) for line in wrapped]


WIDTH = 100

_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "±": "+-", "×": "x", "µ": "u", "μ": "u", "→": "->", "≥": ">=", "≤": "<=",
    "…": "...", "·": ",", "•": "*", "“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u2009": " ",
    "ß": "ss", "æ": "ae", "ø": "o", "Æ": "AE", "Ø": "O",
}  # fmt: skip


def ascii_text(text: str) -> str:
    """Write ``text`` in ASCII: letters lose accents, what has no counterpart is named by its number (``[U+4E2D]``).

    Line breaks stay, other control characters go.
    """
    letters = []
    for char in text:
        if char == "\n" or (char.isascii() and char.isprintable()):
            letters.append(char)
        elif char in _ASCII:
            letters.append(_ASCII[char])
        else:
            letters.append(_nearest_ascii(char))
    return "".join(letters)


def _nearest_ascii(char: str) -> str:
    if char.isascii() or unicodedata.category(char) in ("Cc", "Cf"):
        return " "
    plain = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return plain if plain.isprintable() and plain.strip() else f"[U+{ord(char):04X}]"


def render_ascii(table: Table, *, width: int = WIDTH) -> str:
    """Write ``table`` as on a terminal of ``width`` characters, in ASCII (which may be longer: it is fitted as such)."""
    rows = tuple(
        replace(
            row,
            values=tuple(
                replace(v, text=ascii_text(v.text), compact=None if v.compact is None else ascii_text(v.compact))
                for v in row.values
            ),
            failure=None if row.failure is None else ascii_text(row.failure),
        )
        for row in table.rows
    )
    columns = tuple(replace(c, title=ascii_text(c.title)) for c in table.columns)
    notes, footnotes = (tuple(map(ascii_text, texts)) for texts in (table.notes, table.footnotes))
    plain = replace(table, columns=columns, rows=rows, notes=notes, footnotes=footnotes)
    return ascii_text(render(plain, width=width).plain) + "\n"


def paragraph(text: str, *, indent: str = "", first: str | None = None, width: int = WIDTH) -> str:
    """Break ``text`` into lines of at most ``width`` characters (longer words stay whole). first: before the first line."""
    one_line = " ".join(ascii_text(text).split())
    return textwrap.fill(
        one_line,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
