"""Idle time of each rank's device by cause."""

from __future__ import annotations

from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, duration, said, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import rank_column, timed

CAUSES = {
    "sync": "the host waited for the device first",
    "data": "the host was loading data",
    "host_late": "the host had not launched yet",
    "launch_latency": "launched, not yet started",
    "kernel_gap": "gap of up to 10 us between queued kernels",
    "dependency": "longer gap between queued kernels",
    "outside_operators": "no operator ran: Python between operators, or waiting",
    "long_gap": "single long gap, no part of the usual step",
    "unknown": "launch not recorded",
}


def build(summary: TraceSummary) -> Table:
    """One row per rank and cause."""
    windows = {p.facts.rank: p.budget.parts.window_ns if p.budget else 0 for p in summary.ranks}
    return tabled(
        "idle",
        "Idle time by cause",
        (
            rank_column(lambda i: i.rank),
            Column(
                "cause", "why the device idled", lambda i: said(CAUSES[i.cause], i.cause), role="identity", lead=True
            ),
            Column("idle", "idle", lambda i: timed(i.idle_ns, windows[i.rank], worry=(0.1, 0.3)), duration),
            Column("gaps", "gaps", lambda i: i.gap_count, whole),
            Column("largest", "largest", lambda i: i.largest_ns, duration, drop=1),
        ),
        (i for each in summary.ranks for i in sorted(each.idle, key=lambda i: -i.idle_ns)),
    )


VIEW = View(key="trace_idle", title="Idle time by cause", needs=("trace",), table=build)
