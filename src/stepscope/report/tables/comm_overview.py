"""One line a sweep: latency of its smallest size, best busbw and where, share of the link, average."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_size
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import (
    average_busbw,
    gigabytes,
    head_columns,
    head_values,
    heading,
    in_groups,
    microseconds,
    name,
    share,
)
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.results.comm_labels import failure_label, op_label, sweeps


def build(rows: Sequence[CommRow]) -> Table:
    """Sweeps over sizes among ``rows``, grouped by everything but the operation and its types."""
    mine = [row for row in rows if row.kind == "collective"]
    head = heading(mine, op=False)
    found = sweeps(in_groups(mine, head))
    return Table(
        key="comm_overview",
        title="Collectives at a glance",
        columns=(*head_columns(head), *_COLUMNS),
        rows=tuple(_row(sweep, (*head_values(head, sweep[0]), *_values(sweep))) for sweep in found.values()),
        footnotes=(
            "latency: time at the smallest size. best busbw: the largest over the sizes, and the size it is seen at."
            " avg busbw: plain mean over the sizes, as nccl-tests prints it: which sizes were asked for decides it.",
        )
        if mine
        else (),
    )


TABLE = TableKind(key="comm_overview", title="Collectives at a glance", needs=("comm_rows",), build=build)

_COLUMNS = (
    Column(key="op", title="operation", align="left", role="identity", lead=True),
    Column(key="dtype", title="type", align="left", role="identity"),
    Column(key="place", title="place", align="left", role="identity"),
    Column(key="mode", title="mode", align="left", role="identity"),
    Column(key="sizes", title="sizes", drop=1),
    Column(key="latency_ns", title="latency (us)", short_title="latency", unit="ns"),
    Column(key="busbw", title="best busbw (GB/s)", short_title="best busbw", unit="bytes_per_s"),
    Column(key="at_size", title="at size", unit="bytes", drop=2),
    Column(key="link_fraction", title="of link", drop=4),
    Column(key="average", title="avg busbw (GB/s)", short_title="avg busbw", unit="bytes_per_s", drop=3),
)


def _row(sweep: Sequence[CommRow], values: tuple[Value, ...]) -> Row:
    failed = next((row for row in sweep if row.status != "ok"), None)
    nothing = not any(row.status == "ok" and row.time_ns is not None for row in sweep)
    return Row(values=values, failure=failure_label(failed) if failed is not None and nothing else None)


def _values(sweep: Sequence[CommRow]) -> tuple[Value, ...]:
    first = sweep[0]
    ok = [row for row in sweep if row.status == "ok" and row.time_ns is not None]
    latency = min(ok, key=lambda row: row.size_bytes or 0, default=None)
    rated = [row for row in ok if row.busbw_bytes_per_s is not None]
    best = max(rated, key=lambda row: row.busbw_bytes_per_s or 0.0, default=None)
    at = None if best is None else best.size_bytes
    measured = f"{len(ok)} of {len(sweep)}" if len(ok) < len(sweep) else str(len(ok))
    return (
        name(op_label(first)),
        name(first.dtype if first.reduce_op is None else f"{first.dtype} {first.reduce_op}"),
        name("in" if first.in_place else "out"),
        name(first.mode if first.in_flight == 1 else f"{first.mode} x{first.in_flight}"),
        Value(text=measured, raw=len(ok)),
        microseconds(None if latency is None else latency.time_ns),
        gigabytes(None if best is None else best.busbw_bytes_per_s),
        unknown() if at is None else Value(text=format_size(at), raw=at),
        share(None if best is None else best.link_fraction),
        gigabytes(average_busbw(sweep)),
    )
