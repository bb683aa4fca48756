"""A table in file formats: CSV with raw values, Markdown, HTML, and LaTeX in the style of booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.core.dataclass import record
from stepscope.report.render.terminal import (
    ShownColumns,
    ascii_text,
    cell_text,
    fit,
    left_out,
    said_once,
    worth_showing,
)
from stepscope.report.table import UNKNOWN, Column, Row, Table, Value, blocks
from stepscope.store.writer import csv_text


def as_csv(table: Table) -> str:
    """Write a header line (``key_unit`` where there is a unit) and one line a row; unknown is empty, ``failure``
    comes last."""
    names = [*(_column_header(c.key, c.unit) for c in table.columns), "failure"]
    return csv_text(names, ([*(v.raw for v in row.values), row.failure or ""] for row in table.rows))


def _column_header(key: str, unit: str) -> str:
    name = {"1/s": "per_s"}.get(unit, unit)
    return key if not name or key.endswith(name) else f"{key}_{name}"


def as_markdown(table: Table, *, heading_level: int = 3, footnotes: bool = True) -> str:
    """Write ``table`` as GitHub-flavoured Markdown; a failed row has its reason in the first measured column."""
    shown = worth_showing(table)
    columns = [table.columns[i] for i in shown]
    lines: list[str] = []
    for title, numbers in blocks(table):
        if title:
            lines += [f"{'#' * heading_level} {_markdown_escape(title)}", ""]
        lines.append(_markdown_line(column.title for column in columns))
        lines.append(_markdown_line("---:" if column.align == "right" else ":---" for column in columns))
        lines += [_markdown_row(table, table.rows[number], shown) for number in numbers]
        lines.append("")
    if footnotes:
        lines += [f"- {_markdown_escape(text)}" for text in table.footnotes]
        if table.notes:
            lines += ["", *(f"- **Note** {_markdown_escape(text)}" for text in table.notes)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_row(table: Table, row: Row, indices: Sequence[int]) -> str:
    """Return a row; one that failed says why in its first free cells."""
    if row.failure is None:
        return _markdown_line(row.values[i].text for i in indices)
    texts, stated = [], False
    for i in indices:
        if table.columns[i].names:
            texts.append(row.values[i].text)
        else:
            texts.append(UNKNOWN if stated else f"**{row.failure}**")
            stated = True
    if not stated:
        texts[-1] = f"{texts[-1]} **{row.failure}**"
    return _markdown_line(texts)


def _markdown_line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(_markdown_escape(text) for text in texts) + " |"


def _markdown_escape(text: str) -> str:
    """Escape ``text``: no cell may end its column or start markup of its own."""
    return " ".join("".join(f"\\{c}" if c in "\\|[`" else c for c in text).replace("<", "&lt;").split())


def plain_text(text: str) -> str:
    """Write ``text`` as words of a Markdown page: one line, and nothing in it is markup, a link or HTML."""
    one_line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return "".join(f"\\{c}" if c in "\\`*[]<>#|!" else c for c in one_line)


WIDE_TEXT = 28
"""Characters from which on a cell of a page may be wrapped."""


def as_html(table: Table, columns: Sequence[int], label: str) -> str:
    """Write the element of a page, of these ``columns``. label: id of its heading.

    What is no name has its raw value beside it. A failed row has its reason across the measured columns that stand together.
    """
    from markupsafe import escape

    def written(value: Value, column: Column) -> str:
        tag, scope = ("th", ' scope="row"') if column.role == "lead" else ("td", "")
        wide, tone = " w" * (len(value.text) > WIDE_TEXT), f" {value.tone}" * (value.tone != "plain")
        raw = "" if isinstance(value.raw, str | bool | None) else f' data-v="{value.raw}"'
        return f'<{tag}{scope} class="{column.align[0]}{wide}{tone}"{raw}>{escape(value.text)}</{tag}>\n'

    shown = [table.columns[i] for i in columns]
    heads = "".join(f'<th scope="col" class="{column.align[0]}">{escape(column.title)}</th>' for column in shown)
    measured = [at for at, column in enumerate(shown) if column.role == "measured"]
    together = next((n for n, at in enumerate(measured) if at != measured[0] + n), len(measured))
    reason = f'<td class="l bad failed" colspan="{together}">'
    body = []
    for row in table.rows:
        cells = [written(row.values[i], column) for i, column in zip(columns, shown, strict=True)]
        for place, at in enumerate(measured if row.failure else ()):
            cells[at] = (
                "" if 0 < place < together else f"{reason}{escape(row.failure)}</td>" if not place else "<td></td>"
            )
        body.append(f"    <tr>{''.join(cells)}</tr>\n")
    return (
        f'<table aria-labelledby="{escape(label)}">\n    <thead><tr>{heads}</tr></thead>\n'
        f"    <tbody>\n{''.join(body)}    </tbody>\n  </table>"
    )


LATEX_WIDTH = 80
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


def latex_escape(text: str) -> str:
    """Write ``text`` so that LaTeX prints it and does nothing else; one line.

    Letters that pdflatex lacks are spelt out.
    """
    out: list[str] = []
    before = ""
    for char in " ".join(text.split()):
        if char in _LIGATURES and char == before:
            out.append(f"{{}}{char}")
        elif char in _SPECIAL:
            out.append(_SPECIAL[char])
        elif char in _SYMBOLS:
            out.append(_SYMBOLS[char])
        elif (char.isascii() and char.isprintable()) or _is_western(char):
            out.append(char)
        else:
            out.append("".join(_SPECIAL.get(c, c) for c in ascii_text(char)))
        before = char
    return "".join(out)


def _is_western(char: str) -> bool:
    """Return the letters with accents that every encoding of LaTeX's fonts has."""
    return char.isalpha() and 0xC0 <= ord(char) <= 0xFF and char not in "ÐÞðþ"


@record
class _Shown:
    """What of a table is set: its layout, and for each column its specification."""

    layout: ShownColumns
    columns: tuple[str, ...]


def as_latex(table: Table, *, label: str | None = None) -> str:
    """Write ``table`` as a float (longer ones: longtable); columns that a page has no room for are named below it.

    label: for ``\ref``; None: ``tab:KEY``.
    """
    shown = _latex_layout(table)
    long = len(table.rows) > LONG
    spec = "@{}" + "".join(shown.columns) + "@{}"
    title = latex_escape(table.title)
    name = escape_label(label or f"tab:{table.key}")
    packages = "booktabs,array,longtable" if long else "booktabs,array"
    lines = [rf"% Written by stepscope; needs \usepackage{{{packages}}}"]
    head = _latex_line([latex_escape(text) for text in shown.layout.titles])
    body = _latex_body(table, shown)
    notes = _below_table(table, shown.layout)
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


def _latex_layout(table: Table) -> _Shown:
    """Return the columns as LaTeX takes them, as many as fit."""
    layout = fit(table, LATEX_WIDTH)
    specs = []
    for index, width in zip(layout.indices, layout.widths, strict=True):
        column = table.columns[index]
        if column.align == "right":
            specs.append("r")
            continue
        natural = max(
            (len(cell_text(table, n, index, compact=layout.compact)) for n in range(len(table.rows))), default=0
        )
        if natural > width or natural > MAX_TEXT:
            specs.append(rf">{{\raggedright\arraybackslash}}p{{{EM_PER_CHAR * width:.1f}em}}")
        else:
            specs.append("l")
    return _Shown(layout=layout, columns=tuple(specs))


def _latex_body(table: Table, shown: _Shown) -> list[str]:
    """Return the rows, block by block."""
    lines: list[str] = []
    width = len(shown.columns)
    for block, (title, numbers) in enumerate(blocks(table)):
        if block:
            lines.append(r"\addlinespace")
        if title:
            lines.append(
                rf"\multicolumn{{{width}}}{{@{{}}l@{{}}}}{{\textit{{{latex_escape(_shortened(title, LATEX_WIDTH))}}}}} \\"
            )
        lines += [_latex_row(table, table.rows[number], number, shown.layout) for number in numbers]
    return lines


def _latex_row(table: Table, row: Row, number: int, layout: ShownColumns) -> str:
    """Return a row; one that failed says why over its free cells."""
    texts = [latex_escape(cell_text(table, number, i, compact=layout.compact)) for i in layout.indices]
    if row.failure is None:
        return _latex_line(texts)
    names = [at for at, i in enumerate(layout.indices) if table.columns[i].names]
    rest = len(layout.indices) - len(names)
    room = sum(layout.widths[len(names) :]) + layout.gap * (rest - 1)
    if names != list(range(len(names))) or not rest:
        return _latex_line([*texts[:-1], rf"\textit{{{latex_escape(row.failure)}}}"])
    return _latex_line(
        [
            *texts[: len(names)],
            rf"\multicolumn{{{rest}}}{{l@{{}}}}{{\textit{{{latex_escape(_shortened(row.failure, room))}}}}}",
        ]
    )


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _below_table(table: Table, layout: ShownColumns) -> list[str]:
    """Write what stands under the table: columns said once, left out, footnotes and notes."""
    texts = []
    if stated := said_once(table, layout):
        texts.append(f"All rows: {stated}.")
    texts += [*table.footnotes, *table.notes]
    if names := left_out(table, layout):
        texts.append(f"In the CSV file only: {names}.")
    if not texts:
        return []
    return [
        r"\par\smallskip\begin{minipage}{\linewidth}\scriptsize\raggedright",
        *(rf"{latex_escape(text)}\par" for text in texts),
        r"\end{minipage}",
    ]
