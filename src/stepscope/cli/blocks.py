"""Printing tables that end up in pipes as well as on terminals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.cli.console import out, say

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.report.table import Table


def show_table(table: Table, *, titled: bool = False, width: int | None = None, folded: bool = False) -> None:
    """``table`` on stdout, as wide as that or ``width``. titled: under its title. folded: what is too wide is broken here,
    not by the terminal."""
    from stepscope.report.render import terminal

    if titled:
        out().print(table.title, style="bold")
    text = terminal.render(table, width=width or out().width)
    if folded:
        print_block(out(), text)
    else:
        say(text)


def limited(table: Table, limit: int, rest: str) -> Table:
    """The first rows of a table, and a note on how many more there are. limit: 0 for all; rest: what shows them."""
    if not limit or len(table.rows) <= limit:
        return table
    more = f"{len(table.rows) - limit} more rows: {rest}"
    return replace(table, rows=table.rows[:limit], notes=(*table.notes[:limit], more))


def print_block(console: Console, block: Any) -> None:
    """Print a rich table or grid; into a pipe without the blanks that fill up its last column."""
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as captured:
        console.print(block)
    lines = (line.rstrip() for line in captured.get().splitlines())
    console.out("\n".join(lines), highlight=False)
