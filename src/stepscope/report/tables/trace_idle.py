"""Idle time of each rank's device by cause."""

from __future__ import annotations

from stepscope.records.trace_summary import TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind
from stepscope.report.tables._trace import duration, words
from stepscope.report.tables.trace_budget import timed

CAUSES = {
    "sync": "the host waited for the device first",
    "data": "the host was loading data",
    "host_late": "the host had not launched yet",
    "launch_latency": "launched, not yet started",
    "kernel_gap": "gap of up to 10 us between queued kernels",
    "dependency": "longer gap between queued kernels",
    "outside_operators": "no operator ran: Python between operators, or waiting",
    "unknown": "launch not recorded",
}


def build(summary: TraceSummary) -> Table:
    """One row per rank and cause."""
    rows = []
    for each in summary.ranks:
        window = each.budget.parts.window_ns if each.budget else 0
        rows += [
            Row(
                values=(
                    words(str(i.rank), raw=i.rank),
                    words(CAUSES[i.cause], raw=i.cause),
                    timed(i.idle_ns, window, worry=(0.1, 0.3)),
                    words(str(i.gap_count), raw=i.gap_count),
                    duration(i.largest_ns),
                )
            )
            for i in sorted(each.idle, key=lambda i: -i.idle_ns)
        ]
    return Table(
        key="idle",
        title="Idle time by cause",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="cause", title="why the device idled", align="left", role="identity", lead=True),
            Column(key="idle", title="idle", unit="ns"),
            Column(key="gaps", title="gaps"),
            Column(key="largest", title="largest", unit="ns", drop=1),
        ),
        rows=tuple(rows),
    )


TABLE = TableKind(key="idle", title="Idle time by cause", needs=("trace",), build=build)
