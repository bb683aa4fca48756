"""Where each rank's time went, in a trace: the parts of the window, which sum to it."""

from __future__ import annotations

import statistics

from stepscope.core.units import format_duration
from stepscope.records.trace_budget import Parts
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value
from stepscope.report.tables._trace import duration, many_note, percent, standing_out


def build(summary: TraceSummary) -> Table:
    """One row a rank."""
    fractions = [p.budget.parts.exposed_comm_fraction for p in summary.ranks if p.budget is not None]
    usual = statistics.median(fractions) if fractions else 0.0

    def oddness(p: RankPass) -> float:
        return abs(p.budget.parts.exposed_comm_fraction - usual) if p.budget is not None else 0.0

    verdicts = {v.rank: v.verdict.kind for v in summary.verdicts}
    rows = [
        Row(
            values=(
                Value(text=str(p.facts.rank), raw=p.facts.rank),
                *parts_values(p.budget.parts),
                Value(text=verdicts.get(p.facts.rank, ""), raw=verdicts.get(p.facts.rank)),
            )
        )
        for p in standing_out(summary.ranks, oddness)
        if p.budget is not None
    ]
    sources = {p.budget.source for p in summary.ranks if p.budget is not None}
    return Table(
        key="budget",
        title="Time budget and overlap",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            *parts_columns(),
            Column(key="verdict", title="bound by", align="left"),
        ),
        rows=tuple(rows),
        footnotes=(
            "compute + exposed comm + exposed copies + idle = window; exposed: under no computation",
            *many_note(len(fractions), "those farthest from the median share of exposed communication"),
            *(_CPU_NOTE for source in sources if source == "cpu_spans"),
        ),
    )


TABLE = TableKind(key="budget", title="Time budget and overlap", needs=("trace",), build=build)

_CPU_NOTE = "no device in this trace: compute = operators, communication = gloo's own spans"


def parts_columns() -> tuple[Column, ...]:
    """The columns of a budget; ``parts_values`` fills them."""
    return (
        Column(key="window", title="window", unit="ns"),
        Column(key="compute", title="compute", unit="ns"),
        Column(key="exposed_comm", title="exposed comm", unit="ns", short_title="exp comm"),
        Column(key="exposed_memory", title="exposed copies", unit="ns", short_title="exp copies", drop=1),
        Column(key="idle", title="idle", unit="ns"),
        Column(key="comm", title="all comm", unit="ns", drop=2),
        Column(key="hidden_fraction", title="hidden", drop=3),
    )


def parts_values(parts: Parts) -> tuple[Value, ...]:
    """Times with their share of the window."""
    return (
        duration(parts.window_ns),
        timed(parts.compute_ns, parts.window_ns),
        timed(parts.exposed_comm_ns, parts.window_ns, worry=(0.1, 0.25)),
        timed(parts.exposed_memory_ns, parts.window_ns, worry=(0.05, 0.15)),
        timed(parts.idle_ns, parts.window_ns, worry=(0.15, 0.35)),
        duration(parts.comm_ns),
        percent(parts.hidden_fraction),
    )


def timed(ns: int, window_ns: int, *, worry: tuple[float, float] | None = None) -> Value:
    """A duration and its share of the window; from ``worry`` on in yellow and red."""
    share = ns / window_ns if window_ns else 0.0
    tone: Tone = "plain"
    if worry is not None:
        tone = "bad" if share >= worry[1] else "warn" if share >= worry[0] else "plain"
    return Value(text=f"{format_duration(ns)} {share:4.0%}", raw=ns, compact=f"{share:.0%}", tone=tone)
