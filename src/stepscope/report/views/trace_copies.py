"""Memory copies and memsets by direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.core.units import format_duration
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import CopyRow
from stepscope.report.table import (
    Column,
    Table,
    Value,
    bandwidth,
    duration,
    number,
    said,
    size,
    tabled,
)
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, middle, most, over_ranks, over_ranks_note, time_over_ranks

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
    rows = (row for each in passes for row in (each.copies.rows if each.copies else ()))
    merged = over_ranks(rows, lambda r: (r.kind, r.memory), lambda r: r.busy_ns)
    pageable = sum(r.busy_ns for rows in merged for r in rows if r.memory == "pageable")

    def largest(field: str) -> Callable[[Sequence[CopyRow]], float | None]:
        return lambda rows: max((getattr(r, field) for r in rows if getattr(r, field) is not None), default=None)

    def exposed(rows: Sequence[CopyRow]) -> Value:
        return time_over_ranks(rows, "exposed_ns", window, worry=(0.05, 0.15))

    return tabled(
        "copies",
        "Memory copies",
        (
            Column(
                "kind", "copy", lambda r: said(KINDS.get(r[0].kind, r[0].kind), r[0].kind), role="identity", lead=True
            ),
            Column("memory", "host memory", lambda rows: rows[0].memory),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number),
            Column("busy", "time", lambda rows: time_over_ranks(rows, "busy_ns", window), duration),
            Column("exposed", "exposed", exposed, duration),
            Column("size", "moved", lambda rows: middle(rows, "size_bytes"), size),
            Column("rate", "rate", _rate, bandwidth),
            Column("median", "median", largest("median_bytes"), size, drop=2),
            Column("largest", "largest", largest("largest_bytes"), size, drop=1),
            Column("largest_rank", "most", lambda rows: most({r.rank: r.busy_ns for r in rows}, ranks)),
        ),
        merged,
        footnotes=(
            "time, exposed (under neither computation nor communication): share of the window; "
            "rate: of the copies whose size is known, GB = 1e9 bytes",
            *over_ranks_note(ranks),
        ),
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


def _rate(rows: Sequence[CopyRow]) -> float | None:
    """Bytes / time over all ranks: each rank's rate weighs as its bytes do."""
    known = [(r.size_bytes, r.bytes_per_s) for r in rows if r.size_bytes and r.bytes_per_s]
    seconds = sum(moved / rate for moved, rate in known)
    return sum(moved for moved, _ in known) / seconds if seconds else None


VIEW = View(key="trace_copies", title="Memory copies", needs=("trace",), table=build)
