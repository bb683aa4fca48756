"""A table as lines of a given width: rich text for a terminal, ASCII for texts that any mail or printer shows."""

from __future__ import annotations

import textwrap
import unicodedata
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from stepscope.report.render.fit import ShownColumns, cell_text, fit, left_out, said_once
from stepscope.report.table import Table, blocks

_STYLES = {"plain": "", "good": "green", "warn": "yellow", "bad": "red", "dim": "dim"}
_MIN_FAILURE = 30


def render(table: Table, *, width: int, footnotes: bool = True) -> Text:
    """``table`` in lines of at most ``width`` characters where that is possible; styles only where they mean
    something.

    A failed row shows its reason in place of its figures. Columns that found no room are named below the
    table. Without rows only footnotes and notes are shown, if any.
    """
    layout = fit(table, width)
    if not table.rows and (table.footnotes or table.notes):
        return Text("\n").join(_below(table, layout, width, footnotes=footnotes)[1:])
    lines = [_line(layout, table, layout.titles, "bold")]
    lines.append(Text("─" * min(width, layout.width), style="dim"))
    for block, (title, numbers) in enumerate(blocks(table)):
        if block:
            lines.append(Text())
        if title:
            lines.append(Text(title, style="bold cyan"))
        for number in numbers:
            lines += _row(table, layout, number, width)
    lines += _below(table, layout, width, footnotes=footnotes)
    return Text("\n").join(lines)


def _line(layout: ShownColumns, table: Table, texts: tuple[str, ...], style: str) -> Text:
    line = Text()
    for position, (index, text) in enumerate(zip(layout.indices, texts, strict=True)):
        if position:
            line.append(" " * layout.gap)
        line.append(_aligned(text, layout.widths[position], table.columns[index].align), style=style)
    line.rstrip()
    return line


def _row(table: Table, layout: ShownColumns, number: int, width: int) -> list[Text]:
    row = table.rows[number]
    failed = row.failure is not None
    positions = [p for p, i in enumerate(layout.indices) if not failed or table.columns[i].role == "identity"]
    cells = [cell_text(table, number, layout.indices[p], compact=layout.compact) for p in positions]
    wrapped = [
        textwrap.wrap(text, layout.widths[p], break_on_hyphens=False) or [""]
        for text, p in zip(cells, positions, strict=True)
    ]
    used = sum(layout.widths[p] for p in positions) + layout.gap * len(positions)
    reason = textwrap.wrap(row.failure or "", max(_MIN_FAILURE, width - used)) if failed else []
    lines = []
    for depth in range(max(*(len(w) for w in wrapped), len(reason), 1)):
        line = Text()
        for order, (position, parts) in enumerate(zip(positions, wrapped, strict=True)):
            index = layout.indices[position]
            text = parts[depth] if depth < len(parts) else ""
            if order:
                line.append(" " * layout.gap)
            line.append(
                _aligned(text, layout.widths[position], table.columns[index].align),
                style=_STYLES[row.values[index].tone],
            )
        if depth < len(reason):
            line.append(" " * layout.gap)
            line.append(reason[depth], style="red")
        line.rstrip()
        lines.append(line)
    return lines


def _aligned(text: str, width: int, align: str) -> str:
    space = " " * max(0, width - cell_len(text))
    return text + space if align == "left" else space + text


def _below(table: Table, layout: ShownColumns, width: int, *, footnotes: bool) -> list[Text]:
    lines: list[Text] = []
    if said := said_once(table, layout):
        lines += _note(f"all rows: {said}", width, "")
    if names := left_out(table, layout):
        lines += _note(f"no room at this width: {names}", width, "dim")
    if footnotes:
        for text in table.footnotes:
            lines += _note(text, width, "dim")
        for text in table.notes:
            lines += _note(f"! {text}", width, "yellow")
    return [Text(), *lines] if lines else []


def _note(text: str, width: int, style: str) -> list[Text]:
    wrapped = textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
    return [Text(line, style=style) for line in wrapped]


WIDTH = 100

_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "±": "+-", "×": "x", "µ": "u", "μ": "u", "→": "->", "≥": ">=", "≤": "<=",
    "…": "...", "·": ",", "•": "*", "“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u2009": " ",
    "ß": "ss", "æ": "ae", "ø": "o", "Æ": "AE", "Ø": "O",
}  # fmt: skip


def ascii_text(text: str) -> str:
    """``text`` in ASCII: letters lose their accents, what has no counterpart is named by its number (``[U+4E2D]``).

    Line breaks stay, other control characters go.
    """
    found = []
    for char in text:
        if char == "\n" or (char.isascii() and char.isprintable()):
            found.append(char)
        elif char in _ASCII:
            found.append(_ASCII[char])
        else:
            found.append(_nearest(char))
    return "".join(found)


def _nearest(char: str) -> str:
    if char.isascii() or unicodedata.category(char) in ("Cc", "Cf"):
        return " "
    plain = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return plain if plain.isprintable() and plain.strip() else f"[U+{ord(char):04X}]"


def render_ascii(table: Table, *, width: int = WIDTH) -> str:
    """``table`` as on a terminal of ``width`` characters, in ASCII (which may be longer: it is fitted as such)."""
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
    """``text`` in lines of at most ``width`` characters (longer words stay whole). first: before the first line."""
    one_line = " ".join(ascii_text(text).split())
    return textwrap.fill(
        one_line,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
