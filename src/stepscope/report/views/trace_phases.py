"""The parts of each rank's window by the phase that launched them."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.records.trace_budget import PhaseBudget
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, Value, duration, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import rank_column, timed


def build(summary: TraceSummary) -> Table:
    """One row per rank and phase; phases without any time are left out."""
    windows = {p.facts.rank: p.budget.parts.window_ns if p.budget else 0 for p in summary.ranks}

    def part(of: Callable[[PhaseBudget], int]) -> Callable[[PhaseBudget], Value]:
        return lambda p: timed(of(p), windows[p.rank])

    return tabled(
        "phases",
        "Phases",
        (
            rank_column(lambda p: p.rank),
            Column("phase", "phase", lambda p: p.phase, role="identity", lead=True),
            Column("total", "total", part(_total), duration),
            Column("compute", "compute", part(lambda p: p.compute_ns), duration),
            Column("exposed_comm", "exposed comm", part(lambda p: p.exposed_comm_ns), duration, short_title="exp comm"),
            Column(
                "exposed_memory", "exposed copies", part(lambda p: p.exposed_memory_ns), duration,
                short_title="exp copies", drop=1,
            ),
            Column("idle", "idle", part(lambda p: p.idle_ns), duration),
            Column("comm", "all comm", lambda p: p.comm_ns, duration, drop=2),
            Column("host", "host", lambda p: p.host_ns, duration, drop=3),
        ),
        (p for each in summary.ranks for p in each.phases if _total(p) or p.host_ns),
        footnotes=("device work belongs to the phase that launched it, idle time to the phase that launches next",),
    )  # fmt: skip


def _total(p: PhaseBudget) -> int:
    return p.compute_ns + p.exposed_comm_ns + p.exposed_memory_ns + p.idle_ns


VIEW = View(key="trace_phases", title="Phases", needs=("trace",), table=build)
