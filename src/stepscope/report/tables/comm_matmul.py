"""Square matrix products: the rate that computation reaches at each size and type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.core.units import format_flops
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import (
    head_columns,
    head_values,
    heading,
    in_groups,
    microseconds,
    name,
    share,
    size_value,
)
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.results.comm_facts import interval_share
from stepscope.results.comm_labels import failure_label


def build(rows: Sequence[CommRow]) -> Table:
    """The ``matmul`` rows; the best rate of each type is marked."""
    mine = [row for row in rows if row.kind == "matmul"]
    head = heading(mine, op=False)
    best: dict[str, float] = {}
    for row in mine:
        best[row.dtype] = max(best.get(row.dtype, 0.0), row.flops_per_s or 0.0)
    return Table(
        key="comm_matmul",
        title="Matrix products",
        columns=(*head_columns(head), *_COLUMNS),
        rows=tuple(
            Row(
                values=(*head_values(head, row), *_values(row, best[row.dtype])),
                failure=None if row.status == "ok" else failure_label(row),
            )
            for row in in_groups(mine, head)
        ),
        footnotes=(
            "N x N times N x N, 2 N^3 FLOP each; time: median over the products of all ranks, which multiply at the same"
            " time. rate: of one rank, from that time. of best: rate / the best rate of that type.",
        )
        if mine
        else (),
    )


TABLE = TableKind(key="comm_matmul", title="Matrix products", needs=("comm_rows",), build=build)

_COLUMNS = (
    Column(key="dtype", title="type", align="left", role="identity", lead=True),
    Column(key="n", title="N", role="identity", lead=True),
    Column(key="size_bytes", title="operand (B)", unit="bytes", role="identity", drop=1),
    Column(key="time_ns", title="time (us)", unit="ns"),
    Column(key="interval_fraction", title="±95 %", drop=3),
    Column(key="flops", title="rate of a rank", unit="flops_per_s"),
    Column(key="of_best", title="of best", drop=2),
)


def _values(row: CommRow, best: float) -> tuple[Value, ...]:
    side = None if row.numel is None else math.isqrt(row.numel)
    rate = row.flops_per_s
    return (
        name(row.dtype),
        unknown() if side is None else Value(text=str(side), raw=side),
        size_value(row),
        microseconds(row.time_ns_median),
        share(interval_share(row)),
        unknown() if rate is None else Value(text=format_flops(rate), raw=rate),
        share(None if rate is None or not best else rate / best, tone="good" if rate == best else "plain"),
    )
