"""Square matrix products: the rate that computation reaches at each size and type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Table, Value, flops, percent, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._comm import failed, heading, in_groups, microseconds, size_column
from stepscope.results.comm_facts import interval_share


def build(rows: Sequence[CommRow]) -> Table:
    """The ``matmul`` rows; the best rate of each type is marked."""
    mine = [row for row in rows if row.kind == "matmul"]
    head = heading(mine, op=False)
    best: dict[str, float] = {}
    for row in mine:
        best[row.dtype] = max(best.get(row.dtype, 0.0), row.flops_per_s or 0.0)

    def of_best(row: CommRow) -> Value:
        top, rate = best[row.dtype], row.flops_per_s
        return percent(None if rate is None or not top else rate / top, tone="good" if rate == top else "plain")

    return tabled(
        "comm_matmul",
        "Matrix products",
        (
            *head,
            Column("dtype", "type", lambda row: row.dtype, role="identity", lead=True),
            Column(
                "n", "N", lambda r: None if r.numel is None else math.isqrt(r.numel), whole, role="identity", lead=True
            ),
            size_column("operand (B)", lead=False, drop=1),
            Column("time_ns", "time (us)", lambda row: row.time_ns_median, microseconds),
            Column("interval_fraction", "±95%", interval_share, percent, drop=3),
            Column("flops", "rate of a rank", lambda row: row.flops_per_s, flops, unit="flops_per_s"),
            Column("of_best", "of best", of_best, percent, drop=2),
        ),
        in_groups(mine, head),
        failure=failed,
        footnotes=(
            "N x N times N x N, 2 N^3 FLOP each; time: median over the products of all ranks, which multiply at the same"
            " time. rate: of one rank, from that time. of best: rate / the best rate of that type.",
        ),
    )


VIEW = View(key="comm_matmul", title="Matrix products", needs=("comm_rows",), table=build)
