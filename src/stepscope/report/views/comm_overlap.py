"""A collective beside matrix products: how much each slows the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Table, Value, byte_size, judged, said, tabled, times, unknown
from stepscope.report.view import View
from stepscope.report.views._comm import failed, gigabytes, heading, in_groups, microseconds, size_column

FREE = 1.1
"""Below this slow-down two things count as running beside each other: five times the 2% that measuring aims at."""


def build(rows: Sequence[CommRow]) -> Table:
    """The ``overlap`` rows."""
    mine = [row for row in rows if row.kind == "overlap"]
    head = heading(mine)
    return tabled(
        "comm_overlap",
        "Communication beside computation",
        (
            *head,
            size_column("size", byte_size),
            Column("dtype", "type", lambda row: row.dtype, role="identity"),
            Column("time_ns", "time (us)", lambda row: row.time_ns_median, microseconds, drop=2),
            Column("busbw", "busbw (GB/s)", lambda row: row.busbw_bytes_per_s, gigabytes, short_title="busbw", drop=1),
            Column("slowdown", "collective slowed", lambda row: _slower(row.slowdown), times),
            Column("beside_slowdown", "product slowed", lambda row: _slower(row.beside_slowdown), times),
            Column("verdict", "together", lambda row: _verdict(row.slowdown, row.beside_slowdown)),
        ),
        in_groups(mine, head),
        failure=failed,
        footnotes=(
            "slow-down: time while both run / time alone, of the slowest rank, medians; 1.00x: the other one costs"
            " nothing, 2.00x: as if they took turns with something as long.",
        ),
    )


def _slower(ratio: float | None) -> Value:
    return times(ratio, tone=judged(ratio, FREE, math.inf))


def _verdict(collective: float | None, product: float | None) -> Value:
    if collective is None or product is None:
        return unknown()
    if collective < FREE and product < FREE:
        return said("neither slows the other", tone="good")
    if collective < FREE:
        return said("the product pays")
    return said("the collective pays") if product < FREE else said("both pay")


VIEW = View(key="comm_overlap", title="Communication beside computation", needs=("comm_rows",), table=build)
