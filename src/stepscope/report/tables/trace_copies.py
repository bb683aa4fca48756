"""Memory copies and memsets by direction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.core.units import format_bandwidth, format_bytes, format_duration
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import CopyRow
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.report.tables._trace import gaps, median_over, most, number, over_ranks_note, words

KINDS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "within the device",
    "PtoP": "device to device",
    "HtoH": "host to host",
    "memset": "memset",
    "other": "other",
}


def build(summary: TraceSummary) -> Table:
    """One row per kind and host memory, over all ranks, most time first."""
    passes = [p for p in summary.ranks if p.copies is not None and p.copies.rows]
    ranks = [p.facts.rank for p in passes]
    window = sum(p.budget.parts.window_ns for p in passes if p.budget)
    found: dict[tuple[str, str | None], list[CopyRow]] = defaultdict(list)
    for each in passes:
        for row in each.copies.rows if each.copies else ():
            found[row.kind, row.memory].append(row)
    merged = sorted(found.values(), key=lambda rows: -sum(r.busy_ns for r in rows))
    pageable = sum(r.busy_ns for rows in merged for r in rows if r.memory == "pageable")
    return Table(
        key="copies",
        title="Memory copies",
        columns=(
            Column(key="kind", title="copy", align="left", role="identity", lead=True),
            Column(key="memory", title="host memory", align="left"),
            Column(key="calls", title="calls"),
            Column(key="busy", title="time", unit="ns"),
            Column(key="exposed", title="exposed", unit="ns"),
            Column(key="size", title="moved", unit="bytes"),
            Column(key="rate", title="rate", unit="1/s"),
            Column(key="median", title="median", unit="bytes", drop=2),
            Column(key="largest", title="largest", unit="bytes", drop=1),
            Column(key="largest_rank", title="most", align="left"),
        ),
        rows=tuple(_row(rows, ranks, window) for rows in merged),
        footnotes=(
            "time, exposed (under neither computation nor communication): share of the window; "
            "rate: of the copies whose size is known, GB = 1e9 bytes",
            *over_ranks_note(ranks),
        )
        if merged
        else (),
        notes=(
            *gaps(
                summary,
                "copies",
                lambda p: p.copies is not None and bool(p.copies.rows),
                otherwise="no copies on a device in this trace",
            ),
            *(
                (
                    f"{format_duration(pageable)} in copies of pageable memory: pinned memory (pin_memory=True, "
                    "non_blocking=True) copies faster and beside computation",
                )
                if window and pageable >= 0.005 * window
                else ()
            ),
        ),
    )


TABLE = TableKind(key="copies", title="Memory copies", needs=("trace",), build=build)


def _row(rows: Sequence[CopyRow], ranks: Sequence[int], window: int) -> Row:
    first = rows[0]
    busy = {r.rank: r.busy_ns for r in rows}
    sized = {r.rank: r.size_bytes for r in rows if r.size_bytes is not None}
    return Row(
        values=(
            words(KINDS.get(first.kind, first.kind), raw=first.kind),
            words(first.memory),
            number(median_over({r.rank: r.calls for r in rows})),
            _time(busy, window),
            _time({r.rank: r.exposed_ns for r in rows}, window, worry=(0.05, 0.15)),
            _bytes(median_over(sized) if sized else None),
            _rate(rows),
            _bytes(max((r.median_bytes for r in rows if r.median_bytes is not None), default=None)),
            _bytes(max((r.largest_bytes for r in rows if r.largest_bytes is not None), default=None)),
            most(busy, ranks),
        )
    )


def _time(values: dict[int, int], window: int, *, worry: tuple[float, float] | None = None) -> Value:
    middle = median_over(values)
    share = sum(values.values()) / window if window else 0.0
    tone: Tone = "plain"
    if worry is not None:
        tone = "bad" if share >= worry[1] else "warn" if share >= worry[0] else "plain"
    return Value(text=f"{format_duration(middle)} {share:4.0%}", raw=middle, tone=tone)


def _bytes(size: float | None) -> Value:
    return unknown() if size is None else Value(text=format_bytes(size), raw=size)


def _rate(rows: Sequence[CopyRow]) -> Value:
    """Bytes / time over all ranks: each rank's rate weighs as its bytes do."""
    known = [(r.size_bytes, r.bytes_per_s) for r in rows if r.size_bytes and r.bytes_per_s]
    seconds = sum(size / rate for size, rate in known)
    if not seconds:
        return unknown()
    rate = sum(size for size, _ in known) / seconds
    return Value(text=format_bandwidth(rate), raw=rate)
