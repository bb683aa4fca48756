"""The slow pairs of ranks, worst first."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_size
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import gigabytes, microseconds, name, times
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import rank_set
from stepscope.results.slow_pairs import SlowEnd, SlowPair, slow_pairs

MAX_LISTED = 20


def build(rows: Sequence[CommRow]) -> Table:
    """Slow ends first (a rank or host with most of its pairs), then slow pairs that no end explains, worst first.

    Without any: no rows and no footnotes.
    """
    lines, notes = [], []
    for verdict in slow_pairs(rows):
        lines += [_end(end, verdict.world_size) for end in verdict.ends]
        single = [pair for pair in verdict.pairs if not pair.explained]
        lines += [_pair(pair, verdict.world_size) for pair in single[:MAX_LISTED]]
        if len(single) > MAX_LISTED:
            notes.append(f"{len(single) - MAX_LISTED} more slow measurements on {verdict.world_size} ranks")
    return Table(
        key="comm_slow_pairs",
        title="Slow pairs",
        columns=_COLUMNS,
        rows=tuple(lines),
        footnotes=(
            "best: the pair's fastest call; usual: the lower quartile of that over the pairs of the same size and path;"
            " slower: their ratio (of a rank with most of its pairs slow: its median).",
        )
        if lines
        else (),
        notes=tuple(notes),
    )


TABLE = TableKind(key="comm_slow_pairs", title="Slow pairs", needs=("comm_rows",), build=build)

_COLUMNS = (
    Column(key="world_size", title="world", role="identity", drop=1),
    Column(key="pair", title="pair", align="left", role="identity", lead=True),
    Column(key="size_bytes", title="size", unit="bytes", role="identity"),
    Column(key="path", title="path", align="left", role="identity"),
    Column(key="time_ns", title="best (us)", unit="ns"),
    Column(key="typical_ns", title="usual (us)", unit="ns"),
    Column(key="ratio", title="slower"),
    Column(key="rate", title="best (GB/s)", unit="bytes_per_s", drop=2),
    Column(key="seen", title="seen", align="left"),
)


def _end(end: SlowEnd, world: int) -> Row:
    ranks = rank_set(end.ranks)
    who = ranks if end.host is None else f"{ranks} ({end.host})"
    pair = {"egress": f"{who} -> any", "ingress": f"any -> {who}", "both": f"{who} <-> any"}[end.direction]
    return Row(
        values=(
            Value(text=str(world), raw=world),
            name(pair),
            unknown(),
            unknown(),
            unknown(),
            unknown(),
            times(end.ratio, tone="bad"),
            unknown(),
            name(f"in {end.slow} of {end.of} pairs"),
        )
    )


def _pair(pair: SlowPair, world: int) -> Row:
    sender, receiver = pair.peer
    return Row(
        values=(
            Value(text=str(world), raw=world),
            name(f"{sender} <-> {receiver}" if pair.bidirectional else f"{sender} -> {receiver}"),
            Value(text=format_size(pair.size_bytes), raw=pair.size_bytes),
            name(pair.path) if pair.path else unknown(),
            microseconds(pair.time_ns),
            microseconds(pair.typical_ns),
            times(pair.ratio, tone="bad" if pair.confirmed else "warn"),
            gigabytes(pair.size_bytes / pair.time_ns * 1e9),
            name("in several measurements" if pair.confirmed else "once"),
        )
    )
