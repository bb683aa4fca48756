"""The tables of a comm run, those that have something to show, in the order they are read."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.table import Table
from stepscope.report.views import comm, links
from stepscope.results.comm_labels import sweeps


def build_all(rows: Sequence[CommRow]) -> tuple[Table, ...]:
    """Sweeps first, then what is made of them; pairs, overlap and matrix products where they were measured."""
    several = len(sweeps(row for row in rows if row.kind == "collective")) > comm.MAX_AVERAGES
    tables = (
        comm.comm_table(rows),
        *([comm.overview_table(rows)] if several else []),
        comm.winners_table(rows),
        links.pairs_table(rows),
        links.slow_pairs_table(rows),
        comm.beside_table(rows),
        comm.matmul_table(rows),
    )
    return tuple(table for table in tables if table.rows or table.notes)
