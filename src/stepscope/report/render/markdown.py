"""A table as Markdown: one table a group, under its own heading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.report.table import UNKNOWN, Row, Table, grouped, select


def render(table: Table, *, heading_level: int = 3, footnotes: bool = True) -> str:
    """``table`` as GitHub-flavoured Markdown; a failed row has its reason in the first measured column."""
    shown = select(
        table,
        lambda c: (
            c.role != "group"
            and (c.role == "identity" or any(_known(row, table.columns.index(c)) for row in table.rows))
        ),
    )
    lines: list[str] = []
    for head, rows in grouped(table):
        title = " · ".join(value.text for value in head)
        if title:
            lines += [f"{'#' * heading_level} {_escape(title)}", ""]
        lines.append(_line(column.title for _, column in shown))
        lines.append(_line("---:" if column.align == "right" else ":---" for _, column in shown))
        lines += [_row(table, row, [index for index, _ in shown]) for row in rows]
        lines.append("")
    if footnotes:
        lines += [f"- {_escape(text)}" for text in table.footnotes]
        if table.notes:
            lines += ["", *(f"- **Note** {_escape(text)}" for text in table.notes)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(table: Table, row: Row, indices: Sequence[int]) -> str:
    if row.failure is None:
        return _line(row.values[i].text for i in indices)
    texts, said = [], False
    for i in indices:
        if table.columns[i].role == "identity":
            texts.append(row.values[i].text)
        else:
            texts.append(UNKNOWN if said else f"**{row.failure}**")
            said = True
    if not said:
        texts[-1] = f"{texts[-1]} **{row.failure}**"
    return _line(texts)


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(_escape(text) for text in texts) + " |"


def _known(row: Row, index: int) -> bool:
    return row.failure is None and row.values[index].raw is not None


def _escape(text: str) -> str:
    """No cell may end its column or start markup of its own."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def plain_text(text: str) -> str:
    """``text`` as words of a Markdown page: one line, and nothing in it is markup, a link or HTML."""
    one_line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return "".join(f"\\{c}" if c in "\\`*[]<>#|!" else c for c in one_line)
