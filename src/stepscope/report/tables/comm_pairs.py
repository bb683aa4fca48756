"""Messages between every two ranks as a matrix: sender down, receiver across, busbw or time, slow pairs marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import gigabytes, microseconds, name
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.results.comm_labels import (
    LATENCY_BYTES,
    cells_of,
    device_label,
    failure_label,
    network_label,
    ranks_label,
)
from stepscope.results.slow_pairs import SLOW, PairsVerdict, slow_pairs

MARK = "*"
MAX_MATRIX = 32
"""Wider matrices are not for eyes: the list of slow pairs and the heat map say it."""


def build(rows: Sequence[CommRow]) -> Table:
    """One matrix for each size and direction of the ``pairs`` rows, those of one cell after each other."""
    verdicts = {verdict.cell_id: verdict for verdict in slow_pairs(rows)}
    cells = cells_of(rows, "pairs")
    width = max((cell[0].world_size for cell in cells.values()), default=0)
    lines = [
        line
        for cell_id, cell in cells.items()
        if cell[0].world_size <= MAX_MATRIX
        for line in _lines(cell, verdicts[cell_id], width)
    ]
    wide = sorted({cell[0].world_size for cell in cells.values() if cell[0].world_size > MAX_MATRIX})
    return Table(
        key="comm_pairs",
        title="Pairs of ranks",
        columns=_columns(min(width, MAX_MATRIX)),
        rows=tuple(lines),
        footnotes=(_FOOTNOTE,) if cells else (),
        notes=(
            *(f"the matrix of {counted(n, 'rank')} is left out: more than {MAX_MATRIX} columns" for n in wide),
            *dict.fromkeys(verdict.unavailable for verdict in verdicts.values() if verdict.unavailable),
        ),
    )


TABLE = TableKind(key="comm_pairs", title="Pairs of ranks", needs=("comm_rows",), build=build)


def _columns(ranks: int) -> tuple[Column, ...]:
    return (
        Column(key="world", title="ranks", align="left", role="group"),
        Column(key="size_bytes", title="size", unit="bytes", align="left", role="group"),
        Column(key="direction", title="direction", align="left", role="group"),
        Column(key="quantity", title="quantity", align="left", role="group"),
        Column(key="sender", title="from \\ to", align="left", role="identity", lead=True),
        *(Column(key=f"to_{r}", title=str(r), drop=ranks - r) for r in range(ranks)),
    )


def _lines(cell: Sequence[CommRow], verdict: PairsVerdict, width: int) -> list[Row]:
    first = cell[0]
    slow = {(p.size_bytes, p.bidirectional, p.peer) for p in verdict.pairs}
    kinds: dict[tuple[int, bool], dict[tuple[int, int], CommRow]] = {}
    lines = []
    for row in cell:
        if row.peer is not None and row.size_bytes is not None:
            kinds.setdefault((row.size_bytes, row.bidirectional), {})[row.peer] = row
    ranks = f"{ranks_label(first)}, {device_label(first)}"
    if first.network:
        ranks += f", {network_label(first)}"
    hosts = max((row.rank_hosts for row in cell), key=len)
    for (size, both), found in kinds.items():
        head = (
            Value(text=ranks, raw=first.world_size),
            Value(text=format_size(size), raw=size),
            name("both ways at once" if both else "one way"),
            name("time (us)" if size <= LATENCY_BYTES else "busbw (GB/s)"),
        )
        for sender in range(first.world_size):
            label = f"{sender} {hosts[sender]}" if sender < len(hosts) and len(set(hosts)) > 1 else str(sender)
            values = [
                _value(found, (sender, receiver), both=both, slow=(size, both, (sender, receiver)) in slow)
                for receiver in range(min(width, MAX_MATRIX))
            ]
            lines.append(Row(values=(*head, Value(text=label, raw=sender), *values)))
    failed = next((row for row in cell if row.status != "ok" and row.peer is None), None)
    if failed is not None:
        empty = (unknown(),) * min(width, MAX_MATRIX)
        said = (
            Value(text=ranks, raw=first.world_size),
            name("–"),
            name("–"),
            name("–"),
            name("all pairs"),
            *empty,
        )
        lines.append(Row(values=said, failure=failure_label(failed)))
    return lines


def _value(found: Mapping[tuple[int, int], CommRow], peer: tuple[int, int], *, both: bool, slow: bool) -> Value:
    if peer[0] == peer[1]:
        return Value(text="·", raw=None, tone="dim")
    row = found.get(peer)
    if row is None and both and (peer[1], peer[0]) in found:
        return Value(text="", raw=None)  # stands on the other side of the diagonal
    value = unknown() if row is None else _quantity(row)
    if value.raw is None:
        return value
    return replace(value, text=f"{MARK}{value.text}", tone="bad") if slow else value


def _quantity(row: CommRow) -> Value:
    """Raw in ns or bytes/s."""
    if (row.size_bytes or 0) <= LATENCY_BYTES:
        return microseconds(row.time_ns_median)
    return gigabytes(row.busbw_bytes_per_s)


_FOOTNOTE = (
    "time: of the slower of the two ranks, median over the calls; busbw = size / time, both ways at once: per direction"
    f" (GB = 1e9 bytes). {MARK} slow: its best call took at least {SLOW:.2f}x as long as that of its like, and"
    " longer than their scatter explains."
)
