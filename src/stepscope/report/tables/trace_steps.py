"""The time budget of each recorded step, the slowest rank of each step shown."""

from __future__ import annotations

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind
from stepscope.report.tables._trace import duration, words
from stepscope.report.tables.trace_budget import parts_columns, parts_values


def build(summary: TraceSummary) -> Table:
    """One row per step and rank, steps together."""
    steps = sorted((s for p in summary.ranks for s in p.steps), key=lambda s: (s.step, s.rank))
    rows = [
        Row(
            values=(
                words(str(s.step), raw=s.step),
                words(str(s.rank), raw=s.rank),
                *parts_values(s.parts),
                duration(s.host_ns),
            )
        )
        for s in steps
    ]
    notes = []
    if any(s.boundary == "host" for s in steps):
        notes.append("no launches recorded: steps are cut at the host's annotations")
    for each in summary.ranks:
        out = each.outside
        if out is not None and (out.before_first_step or out.after_last_step):
            notes.append(
                f"rank {each.facts.rank}: {counted(out.before_first_step, 'device event')} "
                f"({format_duration(out.before_ns)}) before the first step's work and "
                f"{counted(out.after_last_step, 'event')} after the last step's are in the rank's budget and in no step"
            )
    return Table(
        key="steps",
        title="Steps",
        columns=(
            Column(key="step", title="step", role="identity", lead=True),
            Column(key="rank", title="rank", role="identity", lead=True),
            *parts_columns(),
            Column(key="host", title="host", unit="ns", drop=4),
        ),
        rows=tuple(rows),
        footnotes=("a step begins with the first device work it launched; host: its annotation on the host",),
        notes=tuple(notes),
    )


TABLE = TableKind(key="steps", title="Steps", needs=("trace",), build=build)
