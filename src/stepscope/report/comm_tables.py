"""The tables of a comm run, those that have something to show, in the order they are read."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.table import Table
from stepscope.report.views import (
    comm,
    comm_matmul,
    comm_overlap,
    comm_overview,
    comm_slow_pairs,
    comm_winners,
    pairs,
)
from stepscope.results.comm_labels import sweeps


def build_all(rows: Sequence[CommRow]) -> tuple[Table, ...]:
    """Sweeps first, then what is made of them; pairs, overlap and matrix products where they were measured."""
    several = len(sweeps(row for row in rows if row.kind == "collective")) > comm.MAX_AVERAGES
    tables = (
        comm.build(rows),
        *([comm_overview.build(rows)] if several else []),
        comm_winners.build(rows),
        pairs.build(rows),
        comm_slow_pairs.build(rows),
        comm_overlap.build(rows),
        comm_matmul.build(rows),
    )
    return tuple(table for table in tables if table.rows or table.notes)
