"""A collective beside matrix products: how much each slows the other."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import (
    gigabytes,
    head_columns,
    head_values,
    heading,
    in_groups,
    microseconds,
    name,
    readable_size,
    times,
)
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.results.comm_labels import failure_label

FREE = 1.1
"""Below this slow-down two things count as running beside each other: five times the 2 % that measuring aims at."""


def build(rows: Sequence[CommRow]) -> Table:
    """The ``overlap`` rows."""
    mine = [row for row in rows if row.kind == "overlap"]
    head = heading(mine)
    return Table(
        key="comm_overlap",
        title="Communication beside computation",
        columns=(*head_columns(head), *_COLUMNS),
        rows=tuple(
            Row(
                values=(*head_values(head, row), *_values(row)),
                failure=None if row.status == "ok" else failure_label(row),
            )
            for row in in_groups(mine, head)
        ),
        footnotes=(
            "slow-down: time while both run / time alone, of the slowest rank, medians; 1.00x: the other one costs"
            " nothing, 2.00x: as if they took turns with something as long.",
        )
        if mine
        else (),
    )


TABLE = TableKind(key="comm_overlap", title="Communication beside computation", needs=("comm_rows",), build=build)

_COLUMNS = (
    Column(key="size_bytes", title="size", unit="bytes", role="identity", lead=True),
    Column(key="dtype", title="type", align="left", role="identity"),
    Column(key="time_ns", title="time (us)", unit="ns", drop=2),
    Column(key="busbw", title="busbw (GB/s)", short_title="busbw", unit="bytes_per_s", drop=1),
    Column(key="slowdown", title="collective slowed"),
    Column(key="beside_slowdown", title="product slowed"),
    Column(key="verdict", title="together", align="left"),
)


def _values(row: CommRow) -> tuple[Value, ...]:
    return (
        readable_size(row),
        name(row.dtype),
        microseconds(row.time_ns_median),
        gigabytes(row.busbw_bytes_per_s),
        times(row.slowdown, tone=_tone(row.slowdown)),
        times(row.beside_slowdown, tone=_tone(row.beside_slowdown)),
        _verdict(row.slowdown, row.beside_slowdown),
    )


def _tone(ratio: float | None) -> Tone:
    return "plain" if ratio is None or ratio < FREE else "warn"


def _verdict(collective: float | None, product: float | None) -> Value:
    if collective is None or product is None:
        return unknown()
    if collective < FREE and product < FREE:
        return name("neither slows the other", tone="good")
    if collective < FREE:
        return name("the product pays")
    return name("the collective pays") if product < FREE else name("both pay")
