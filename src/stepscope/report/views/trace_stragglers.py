"""Ranks that the others wait for, how sure that is, why, and what it would bring to make them faster."""

from __future__ import annotations

import statistics
from dataclasses import replace

from stepscope.core.units import format_duration, format_percent
from stepscope.records.trace_collectives import JobCollectives
from stepscope.records.trace_path import Straggler, StragglerReport
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, Value, duration, percent, said, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import rank_column

CAUSES = {
    "compute": "computation",
    "memory": "copies",
    "host_late": "host not launching",
    "sync": "host waiting for the device",
    "data": "data loading",
    "launch_latency": "launch latency",
    "kernel_gap": "gaps between kernels",
    "dependency": "waiting on streams",
    "unknown": "idle, cause unknown",
}
"""Kinds of own time in words."""


def build(summary: TraceSummary) -> Table:
    """One row a straggler; without one the report's own words stand below."""
    report = summary.stragglers
    found = report.stragglers if report is not None else ()
    table = tabled(
        "stragglers",
        "Stragglers",
        (
            rank_column(lambda s: s.rank),
            Column("kind", "kind", lambda s: s.kind),
            Column(
                "share_of_skew",
                "of skew",
                lambda s: percent(s.share_of_skew, tone="bad" if s.share_of_skew >= 0.5 else "warn"),
                percent,
            ),
            Column("times_last", "came last", lambda s: said(f"{s.times_last} of {s.instances}", s.times_last), whole),
            Column("late", "behind peers", lambda s: s.late_ns, duration, short_title="behind"),
            Column("confidence", "certainty", _certainty),
            Column("cause", "why", lambda s: said(_why(s), s.cause)),
            Column("saved", "worth up to", lambda s: s.saved_ns, duration, short_title="worth"),
        ),
        found,
        notes=_notes(summary, report),
    )
    return replace(table, footnotes=_footnotes(summary, found))


def _certainty(s: Straggler) -> Value:
    if s.p_value is not None:
        return Value(text=f"p = {s.p_value:.2g}", raw=s.p_value)
    if s.excess_ns is None:
        return said(s.confidence)
    text = f"+{format_duration(s.excess_ns)} a step"
    if s.excess_low_ns is not None:
        text += f", at least {format_duration(s.excess_low_ns)}"
    return Value(text=text, raw=s.excess_ns)


def _why(s: Straggler) -> str:
    """The cause and the kind of time that exceeds the peers' most: ``launch-bound: +1.42 ms host not launching``."""
    longer = [c for c in s.causes if c.excess_ns > 0]
    cause = "cause unknown" if s.cause == "unknown" else s.cause
    if not longer:
        return cause
    most = max(longer, key=lambda c: c.excess_ns)
    return (
        f"{cause}: {CAUSES.get(most.cause, most.cause)} {format_duration(most.rank_ns)}, "
        f"peers {format_duration(most.peers_ns)}"
    )


def _footnotes(summary: TraceSummary, found: tuple[Straggler, ...]) -> tuple[str, ...]:
    lines = []
    if found:
        lines = [
            "came last, behind peers (in sum, against their median): in the collectives it delayed; "
            "worth: what matching the second-slowest rank would save in this capture",
            f"certainty: {'; '.join(f'rank {s.rank} {s.confidence}' for s in found[:3])}",
        ]
    elif summary.stragglers is not None and summary.stragglers.instances:
        lines = [summary.stragglers.text]  # an answer, not a gap
    return (*lines, *_waits(summary.collectives))


def _waits(job: JobCollectives | None) -> tuple[str, ...]:
    """Who waited least and most: the other side of who came last."""
    totals = [t for t in job.totals if t.instances] if job is not None else []
    if len(totals) < 2 or not any(t.alone_ns for t in totals):
        return ()
    least, most = min(totals, key=lambda t: t.alone_ns), max(totals, key=lambda t: t.alone_ns)
    median = statistics.median([t.alone_ns for t in totals])
    return (
        f"waiting in all collectives: rank {least.rank} least ({format_duration(least.alone_ns)}), "
        f"median {format_duration(median)}, rank {most.rank} most ({format_duration(most.alone_ns)})",
    )


def _notes(summary: TraceSummary, report: StragglerReport | None) -> tuple[str, ...]:
    if report is None:
        return ("no straggler can be named: no communication was recorded",)
    notes = [
        f"rank {s.rank}: {format_percent(s.largest_share)} of its skew comes from one collective"
        for s in report.stragglers
        if s.largest_share >= 0.5 and s.times_last > 1
    ]
    if not report.stragglers and not report.instances:
        notes.append(report.text)
        job = summary.collectives
        if job is not None and job.instances and len(job.clocks.fits) == 1:
            notes.append("give the traces of all ranks: who is late shows only between ranks")
    return tuple(notes)


VIEW = View(key="trace_stragglers", title="Stragglers", needs=("trace",), table=build)
