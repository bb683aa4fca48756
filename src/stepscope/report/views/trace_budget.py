"""What the device of each rank did over a trace: computation, communication and copies that nothing hides, idle."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.names import clean, file_part
from stepscope.report.table import Column, Table, Value, percent, tabled
from stepscope.report.vega import color
from stepscope.report.view import Figures, View, distinct
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, stacks_chart
from stepscope.report.views._trace import many_note, parts_columns, rank_column, standing_out
from stepscope.results.mfu import CONVENTION

if TYPE_CHECKING:
    from stepscope.results.evidence import TraceEvidence

WAITING, COMMUNICATION = "waiting for other ranks", "exposed communication"
KINDS = (
    ("computation", color("k-compute")),
    (WAITING, color("k-late")),
    (COMMUNICATION, color("k-exposed")),
    ("exposed copies", color("k-copies")),
    ("idle", color("k-idle")),
)


def prepare(traces: Sequence[TraceEvidence]) -> tuple[Stacks, ...]:
    """One chart a trace: shares of each rank's window; of many ranks those that compute least."""
    from stepscope.traces.waits import waits_of

    charts: list[Stacks] = []
    for trace in traces:
        waiting = {rank: waits.exposed_ns for rank, waits in waits_of(trace.summary.collectives).items()}
        rows = [row for each in trace.summary.ranks if (row := _row(each, waiting.get(each.facts.rank, 0))) is not None]
        if len(rows) < 2:
            continue
        kept = sorted(rows, key=lambda row: row.parts[0])[:MAX_ROWS] if len(rows) > MAX_ROWS else rows
        left_out = f" ({len(kept)} of {len(rows)} ranks)" if len(kept) < len(rows) else ""
        name = clean(trace.name, 80)
        charts.append(
            Stacks(
                key=file_part(name),
                title=name + left_out,
                kinds=tuple("exposed transfer" if waiting and kind == COMMUNICATION else kind for kind, _ in KINDS),
                colors=tuple(color for _, color in KINDS),
                rows=tuple(kept),
                axis="share of the window (%)",
                scale=100.0,
                whole=1.0,
            )
        )
    return distinct(charts)


def _row(each: RankPass, waiting_ns: int) -> StackRow | None:
    if each.budget is None or not each.budget.parts.window_ns:
        return None
    parts = each.budget.parts
    transfer = parts.exposed_comm_ns - waiting_ns
    found = (parts.compute_ns, waiting_ns, transfer, parts.exposed_memory_ns, parts.idle_ns)
    shares = tuple(part / parts.window_ns for part in found)
    return StackRow(name=f"rank {each.facts.rank}", parts=shares, text=format_percent(shares[0], digits=0))


def caption(data: Stacks) -> str:
    count = len(data.rows)
    means = [sum(row.parts[n] for row in data.rows) / count for n in range(len(KINDS))]
    said = ", ".join(f"{format_percent(mean)} {kind}" for mean, kind in zip(means, data.kinds, strict=True) if mean)
    least = min(data.rows, key=lambda row: row.parts[0])
    tail = f"; least computation: {least.name} with {least.text}" if count > 1 else ""
    return (
        f"What the device did over the trace of {data.title}, {counted(count, 'rank')}: on average {said}{tail}."
        " Exposed: under no computation."
    )


def build(summary: TraceSummary) -> Table:
    """One row a rank."""
    known = [(p, p.budget) for p in summary.ranks if p.budget is not None]
    usual = statistics.median([budget.parts.exposed_comm_fraction for _, budget in known] or [0.0])
    verdicts = {v.rank: v.verdict.kind for v in summary.verdicts}
    sources = {budget.source for _, budget in known}
    return tabled(
        "budget",
        "Time budget and overlap",
        (
            rank_column(lambda each: each[0].facts.rank),
            *parts_columns(lambda each: each[1].parts),
            Column("mfu", "MFU", lambda each: _mfu(each[0]), percent, drop=4),
            Column("verdict", "bound by", lambda each: verdicts.get(each[0].facts.rank) or Value(text="", raw=None)),
        ),
        standing_out(known, lambda each: abs(each[1].parts.exposed_comm_fraction - usual)),
        footnotes=(
            "compute + exposed comm + exposed copies + idle = window; exposed: under no computation",
            *many_note(len(known), "those farthest from the median share of exposed communication"),
            *((f"MFU: {CONVENTION}",) if any(_mfu(p) is not None for p, _ in known) else ()),
            *(_CPU_NOTE for source in sources if source == "cpu_spans"),
        ),
    )


def _mfu(each: RankPass) -> float | None:
    return None if each.utilisation is None else each.utilisation.mfu


_CPU_NOTE = "no device in this trace: compute = operators, communication = gloo's own spans"


VIEW = View(
    key="trace_budget",
    title="Time budget of a trace",
    needs=("trace",),
    table=build,
    figures=Figures(needs=("traces",), prepare=prepare, chart=stacks_chart, caption=caption),
)
