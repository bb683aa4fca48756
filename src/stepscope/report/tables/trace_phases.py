"""The parts of each rank's window by the phase that launched them."""

from __future__ import annotations

from stepscope.records.trace_summary import TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind
from stepscope.report.tables._trace import duration, words
from stepscope.report.tables.trace_budget import timed


def build(summary: TraceSummary) -> Table:
    """One row per rank and phase; phases without any time are left out."""
    rows = []
    for each in summary.ranks:
        window = each.budget.parts.window_ns if each.budget else 0
        for p in each.phases:
            total = p.compute_ns + p.exposed_comm_ns + p.exposed_memory_ns + p.idle_ns
            if not total and not p.host_ns:
                continue
            rows.append(
                Row(
                    values=(
                        words(str(p.rank), raw=p.rank),
                        words(p.phase),
                        timed(total, window),
                        timed(p.compute_ns, window),
                        timed(p.exposed_comm_ns, window),
                        timed(p.exposed_memory_ns, window),
                        timed(p.idle_ns, window),
                        duration(p.comm_ns),
                        duration(p.host_ns),
                    )
                )
            )
    return Table(
        key="phases",
        title="Phases",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="phase", title="phase", align="left", role="identity", lead=True),
            Column(key="total", title="total", unit="ns"),
            Column(key="compute", title="compute", unit="ns"),
            Column(key="exposed_comm", title="exposed comm", unit="ns", short_title="exp comm"),
            Column(key="exposed_memory", title="exposed copies", unit="ns", short_title="exp copies", drop=1),
            Column(key="idle", title="idle", unit="ns"),
            Column(key="comm", title="all comm", unit="ns", drop=2),
            Column(key="host", title="host", unit="ns", drop=3),
        ),
        rows=tuple(rows),
        footnotes=("device work belongs to the phase that launched it, idle time to the phase that launches next",),
    )


TABLE = TableKind(key="phases", title="Phases", needs=("trace",), build=build)
