"""Printing tables that end up in pipes as well as on terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_block(console: Console, block: Any) -> None:
    """Print a rich table or grid; into a pipe without the blanks that fill up its last column."""
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as captured:
        console.print(block)
    lines = (line.rstrip() for line in captured.get().splitlines())
    console.out("\n".join(lines), highlight=False)
