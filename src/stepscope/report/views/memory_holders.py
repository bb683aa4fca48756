"""Which lines and which modules held a device's memory at its recorded peak."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.imported import MemoryHolder, MemorySnapshot
from stepscope.report.table import Column, Table, binary_size, percent, tabled, whole
from stepscope.report.view import View

_Row = tuple[MemorySnapshot, MemoryHolder]


def build_all(memory: Sequence[MemorySnapshot]) -> tuple[Table, ...]:
    """By line and by module, the largest first; where no history was recorded, by line at the snapshot."""
    lines = [(each, holder) for each in memory for holder in each.peak_holders or each.holders]
    modules = [(each, holder) for each in memory for holder in each.peak_modules]
    footnotes = ("the largest ones; line: the innermost outside torch that asked for the memory",)
    unnamed = "where a module has no name: the lines that call it (`stepscope profile --memory --modules` names them)"
    return (
        _table("memory_lines", "Memory by line", "line", lines, footnotes),
        _table("memory_modules", "Memory by module", "module", modules, ("the largest ones at the peak", unnamed)),
    )


def _table(key: str, title: str, what: str, rows: Sequence[_Row], footnotes: tuple[str, ...]) -> Table:
    return tabled(
        key,
        title,
        (
            Column("snapshot", "", lambda row: row[0].name, role="group"),
            Column(what, what, lambda row: row[1].where, role="identity", lead=True),
            Column("kind", "kind", lambda row: row[1].kind),
            Column("bytes", "held", lambda row: row[1].size_bytes, binary_size),
            Column("share", "share", _share, percent),
            Column("blocks", "blocks", lambda row: row[1].blocks, whole, drop=1),
        ),
        rows,
        footnotes=footnotes,
    )


def _share(row: _Row) -> float | None:
    memory, holder = row
    whole_ = memory.peak_requested_bytes or memory.requested_bytes
    return holder.size_bytes / whole_ if whole_ else None


VIEW = View(key="memory_holders", title="Memory by line and module", needs=("memory",), tables=build_all)
