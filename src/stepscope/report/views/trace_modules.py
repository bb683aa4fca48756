"""Modules of the model with the time, communication and memory of each."""

from __future__ import annotations

from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import ModuleRow
from stepscope.report.table import Column, Table, binary_size, duration, number, percent, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, middle, over_ranks, over_ranks_note

MOST = 40


def build(summary: TraceSummary) -> Table:
    """One row a module, medians over ranks, most time first."""
    passes = [p for p in summary.ranks if p.modules]
    merged = over_ranks((r for p in passes for r in p.modules), lambda r: r.module, _time)
    whole = sum(_time(r) for rows in merged for r in rows)
    left = len(merged) - MOST
    return tabled(
        "modules",
        "Modules",
        (
            Column("module", "module", lambda rows: rows[0].module, role="identity", lead=True),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number, drop=1),
            Column("forward", "forward", lambda rows: middle(rows, "forward_ns"), duration),
            Column("backward", "backward", lambda rows: middle(rows, "backward_ns"), duration),
            Column("share", "share", lambda rows: sum(_time(r) for r in rows) / whole if whole else None, percent),
            Column("comm", "comm", lambda rows: middle(rows, "comm_ns"), duration),
            Column("kept", "kept", lambda rows: middle(rows, "kept_bytes"), binary_size),
        ),
        merged[:MOST],
        footnotes=(
            "each without the modules inside it; backward: what autograd ran for its operators; share: of both",
            "kept: bytes allocated less bytes released while it ran; below 0 it released what others had allocated",
            *((f"{left} more modules: --json lists them",) if left > 0 else ()),
            *over_ranks_note([p.facts.rank for p in passes]),
        )
        if merged
        else (),
        notes=gaps(
            summary,
            "modules",
            otherwise="no ranges of modules: `stepscope profile --modules` or with_stack=True record them",
        ),
    )


def _time(row: ModuleRow) -> int:
    return row.forward_ns + row.backward_ns


VIEW = View(key="trace_modules", title="Modules", needs=("trace",), table=build)
