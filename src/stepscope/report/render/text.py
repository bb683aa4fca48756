"""Tables and sentences as plain text that any terminal, mail or printer shows: ASCII only."""

from __future__ import annotations

import textwrap
import unicodedata
from dataclasses import replace

from stepscope.report.render import terminal
from stepscope.report.table import Table

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


def render(table: Table, *, width: int = WIDTH) -> str:
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
    return ascii_text(terminal.render(plain, width=width).plain) + "\n"


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
