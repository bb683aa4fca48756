"""The time budget of each recorded step, the slowest rank of each step shown."""

from __future__ import annotations

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, duration, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import parts_columns, rank_column


def build(summary: TraceSummary) -> Table:
    """One row per step and rank, steps together."""
    steps = sorted((s for p in summary.ranks for s in p.steps), key=lambda s: (s.step, s.rank))
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
    return tabled(
        "steps",
        "Steps",
        (
            Column("step", "step", lambda s: s.step, whole, role="identity", lead=True),
            rank_column(lambda s: s.rank),
            *parts_columns(lambda s: s.parts),
            Column("host", "host", lambda s: s.host_ns, duration, drop=4),
        ),
        steps,
        footnotes=(
            "a step begins with the first device work it launched, on the main stream where earlier work still runs there; "
            "host: its annotation on the host",
        ),
        notes=tuple(notes),
    )


VIEW = View(key="trace_steps", title="Steps", needs=("trace",), table=build)
