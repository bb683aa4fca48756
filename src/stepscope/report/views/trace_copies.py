"""Memory copies and memsets by direction."""

from __future__ import annotations

from collections import defaultdict
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
    judged,
    number,
    said,
    size,
    tabled,
    with_share,
)
from stepscope.report.views._common import View
from stepscope.report.views._trace import gaps, middle, most, over_ranks_note

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

    def largest(field: str) -> Callable[[Sequence[CopyRow]], float | None]:
        return lambda rows: max((getattr(r, field) for r in rows if getattr(r, field) is not None), default=None)

    return tabled(
        "copies",
        "Memory copies",
        (
            Column(
                "kind", "copy", lambda r: said(KINDS.get(r[0].kind, r[0].kind), r[0].kind), role="identity", lead=True
            ),
            Column("memory", "host memory", lambda rows: rows[0].memory),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number),
            Column("busy", "time", lambda rows: _time(rows, "busy_ns", window), duration),
            Column("exposed", "exposed", lambda r: _time(r, "exposed_ns", window, worry=(0.05, 0.15)), duration),
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


def _time(rows: Sequence[CopyRow], field: str, window: int, *, worry: tuple[float, float] | None = None) -> Value:
    half = middle(rows, field) or 0.0
    share = sum(getattr(r, field) for r in rows) / window if window else 0.0
    tone = "plain" if worry is None else judged(share, *worry)
    return with_share(half, share, tone)


def _rate(rows: Sequence[CopyRow]) -> float | None:
    """Bytes / time over all ranks: each rank's rate weighs as its bytes do."""
    known = [(r.size_bytes, r.bytes_per_s) for r in rows if r.size_bytes and r.bytes_per_s]
    seconds = sum(moved / rate for moved, rate in known)
    return sum(moved for moved, _ in known) / seconds if seconds else None


VIEW = View(key="trace_copies", title="Memory copies", needs=("trace",), table=build)
