"""A table as LaTeX in the style of booktabs, for ``\\input`` into a paper; texts of users cannot break it."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.dataclass import dataclass
from stepscope.report.render.fit import ShownColumns, cell_text, fit
from stepscope.report.render.terminal import ascii_text
from stepscope.report.table import Row, Table, grouped

WIDTH = 80
"""Characters that a line of \\footnotesize text holds in LaTeX's article class."""

LONG = 40
"""A table of more rows than this goes over several pages (longtable)."""

MAX_TEXT = 30
"""A column of text wider than this is set as paragraphs."""

EM_PER_CHAR = 0.48

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"{\char34}", "`": r"{\char96}", "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
"""The last three: a row that begins with one of them would be read as an option of the line break before it."""

_SYMBOLS = {
    "–": "--", "—": "---", "±": r"\(\pm\)", "×": r"\(\times\)", "µ": r"\(\mu\)", "μ": r"\(\mu\)", "→": r"\(\to\)",
    "≥": r"\(\geq\)", "≤": r"\(\leq\)", "−": r"\(-\)", "…": r"\ldots{}", "·": r"\(\cdot\)", "\u2009": r"\,", "\u00a0": "~",
}  # fmt: skip

_LIGATURES = "-,'"
"""Two of them in a row would be set as another sign."""


def escape(text: str) -> str:
    """``text`` so that LaTeX prints it and does nothing else; one line. Letters that pdflatex lacks are spelt out."""
    out: list[str] = []
    before = ""
    for char in " ".join(text.split()):
        if char in _LIGATURES and char == before:
            out.append(f"{{}}{char}")
        elif char in _SPECIAL:
            out.append(_SPECIAL[char])
        elif char in _SYMBOLS:
            out.append(_SYMBOLS[char])
        elif (char.isascii() and char.isprintable()) or _western(char):
            out.append(char)
        else:
            out.append("".join(_SPECIAL.get(c, c) for c in ascii_text(char)))
        before = char
    return "".join(out)


def _western(char: str) -> bool:
    """Letters with accents that every encoding of LaTeX's fonts has."""
    return char.isalpha() and 0xC0 <= ord(char) <= 0xFF and char not in "ÐÞðþ"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What of a table is set: its layout, and for each column its specification."""

    layout: ShownColumns
    columns: tuple[str, ...]


def render(table: Table, *, label: str | None = None) -> str:
    """``table`` as a float (longer ones: longtable); columns that a page has no room for are named below it.

    label: for ``\\ref``; None: ``tab:KEY``.
    """
    shown = _shown(table)
    long = len(table.rows) > LONG
    spec = "@{}" + "".join(shown.columns) + "@{}"
    title = escape(table.title)
    name = escape_label(label or f"tab:{table.key}")
    packages = "booktabs,array,longtable" if long else "booktabs,array"
    lines = [rf"% Written by stepscope; needs \usepackage{{{packages}}}"]
    head = _line([escape(text) for text in shown.layout.titles])
    body = _body(table, shown)
    notes = _notes(table, shown.layout)
    if long:
        lines += [
            r"\begingroup\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"\begin{{longtable}}{{{spec}}}",
            rf"\caption{{{title}}}\label{{{name}}}\\",
            r"\toprule", head, r"\midrule", r"\endfirsthead",
            r"\toprule", head, r"\midrule", r"\endhead",
            r"\bottomrule", r"\endfoot",
            *body,
            r"\end{longtable}",
            *notes,
            r"\endgroup",
        ]  # fmt: skip
    else:
        lines += [
            r"\begin{table}[htbp]", r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{title}}}\label{{{name}}}", rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule",
            *body, r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def escape_label(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in ":-.") else "-" for c in text)


def _shown(table: Table) -> _Shown:
    layout = fit(table, WIDTH)
    specs = []
    for index, width in zip(layout.indices, layout.widths, strict=True):
        column = table.columns[index]
        if column.align == "right":
            specs.append("r")
            continue
        natural = max(
            (len(cell_text(table, n, index, compact=layout.compact)) for n in range(len(table.rows))),
            default=0,
        )
        if natural > width or natural > MAX_TEXT:
            specs.append(rf">{{\raggedright\arraybackslash}}p{{{EM_PER_CHAR * width:.1f}em}}")
        else:
            specs.append("l")
    return _Shown(layout=layout, columns=tuple(specs))


def _body(table: Table, shown: _Shown) -> list[str]:
    lines: list[str] = []
    number, width = 0, len(shown.columns)
    for block, (head, rows) in enumerate(grouped(table)):
        if block:
            lines.append(r"\addlinespace")
        title = " · ".join(value.text for value in head)
        if title:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l@{{}}}}{{\textit{{{escape(_short(title, WIDTH))}}}}} \\")
        for row in rows:
            lines.append(_row(table, row, number, shown.layout))
            number += 1
    return lines


def _row(table: Table, row: Row, number: int, layout: ShownColumns) -> str:
    texts = [escape(cell_text(table, number, i, compact=layout.compact)) for i in layout.indices]
    if row.failure is None:
        return _line(texts)
    names = [at for at, i in enumerate(layout.indices) if table.columns[i].role == "identity"]
    rest = len(layout.indices) - len(names)
    room = sum(layout.widths[len(names) :]) + layout.gap * (rest - 1)
    if names != list(range(len(names))) or not rest:
        return _line([*texts[:-1], rf"\textit{{{escape(row.failure)}}}"])
    return _line(
        [
            *texts[: len(names)],
            rf"\multicolumn{{{rest}}}{{l@{{}}}}{{\textit{{{escape(_short(row.failure, room))}}}}}",
        ]
    )


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _notes(table: Table, layout: ShownColumns) -> list[str]:
    """What stands under the table: columns said once, left out, footnotes and notes."""
    texts = []
    if layout.stated and table.rows:
        said = ", ".join(f"{table.columns[i].title} {table.rows[0].values[i].text}" for i in layout.stated)
        texts.append(f"All rows: {said}.")
    texts += [*table.footnotes, *table.notes]
    if layout.dropped:
        texts.append(f"In the CSV file only: {', '.join(table.columns[i].title for i in layout.dropped)}.")
    if not texts:
        return []
    return [
        r"\par\smallskip\begin{minipage}{\linewidth}\scriptsize\raggedright",
        *(rf"{escape(text)}\par" for text in texts),
        r"\end{minipage}",
    ]
