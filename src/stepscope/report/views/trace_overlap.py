"""How much communication computation hid, per rank and step, and which computation it was."""

from __future__ import annotations

from collections import Counter

from stepscope.core.units import format_percent
from stepscope.records.trace_budget import Parts
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import short_names
from stepscope.report.table import Column, Table, Value, duration, judged, percent, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import PARTIAL, gaps, many_note, rank_column, shared, standing_out

NAME = 25

NO_COMMUNICATION = "no communication in this trace: nothing to overlap"


def overlap_efficiency(parts: Parts) -> float | None:
    """Overlap / the shorter of computation and communication: 1 where one hides wholly under the other.

    None without communication; 0 without computation.
    """
    if not parts.comm_ns:
        return None
    least = min(parts.compute_ns, parts.comm_ns)
    return parts.overlap_ns / least if least else 0.0


def build(summary: TraceSummary) -> Table:
    """One row per rank for the whole capture, then one per step and rank; ranks without communication in notes."""
    ranks = [p for p in summary.ranks if p.budget is not None and p.budget.parts.comm_ns]
    names = short_names(
        (h.name for p in ranks if p.communication for c in p.communication.collectives for h in c.hidden_under),
        limit=NAME,
    )
    items: list[tuple[RankPass, int | None, Parts]] = [
        (p, None, p.budget.parts)
        for p in standing_out(ranks, lambda p: p.budget.parts.exposed_comm_fraction if p.budget else 0)
        if p.budget
    ]
    for step in sorted({s.step for p in ranks for s in p.steps}):
        each = [(p, step, s.parts) for p in ranks for s in p.steps if s.step == step]
        items += standing_out(each, lambda x: x[2].exposed_comm_fraction)

    def of_time(parts: Parts) -> Value:
        share = parts.exposed_comm_fraction
        return percent(
            share, tone=judged(parts.exposed_comm_ns / parts.window_ns if parts.window_ns else 0.0, 0.1, 0.25)
        )

    return tabled(
        "overlap",
        "Overlap of communication with computation",
        (
            rank_column(lambda i: i[0].facts.rank),
            Column("step", "step", lambda i: "all" if i[1] is None else i[1], whole, role="identity", lead=True),
            Column("comm", "comm", lambda i: i[2].comm_ns, duration),
            Column("hidden", "hidden", lambda i: shared(i[2].overlap_ns, i[2].comm_ns), duration),
            Column("exposed", "exposed", lambda i: shared(i[2].exposed_comm_ns, i[2].comm_ns), duration),
            Column("exposed_fraction", "of time", lambda i: of_time(i[2]), percent, short_title="time"),
            Column("overlap_efficiency", "efficiency", lambda i: overlap_efficiency(i[2]), percent, short_title="eff"),
            Column("hidden_under", "hidden mostly under", lambda i: _under(i[0], i[1], i[2], names), drop=1),
        ),
        items,
        footnotes=(
            "hidden, exposed: communication under computation and not, share of communication; "
            "of time: exposed / window or step",
            "efficiency: hidden / the shorter of computation and communication, 100% the most there can be",
            *(
                (f"{PARTIAL}: --show overlap,steps adds the steps and what hid it",)
                if any(p.partial for p in ranks)
                else ()
            ),
            *many_note(len(ranks), "those with most exposed communication"),
        ),
        notes=gaps(
            summary,
            "overlap",
            lambda p: p.budget is not None and p.budget.parts.comm_ns > 0,
            otherwise=NO_COMMUNICATION,
        ),
    )


def _under(each: RankPass, step: int | None, parts: Parts, names: dict[str, str]) -> Value | None:
    """The kernel or operator that hid most, with its share of what was hidden."""
    hidden: Counter[str] = Counter()
    for c in each.communication.collectives if each.communication else ():
        if step is None or c.step == step:
            for h in c.hidden_under:
                hidden[h.name] += h.hidden_ns
    if not hidden or not parts.overlap_ns:
        return None
    name, ns = hidden.most_common(1)[0]
    share = min(1.0, ns / parts.overlap_ns)
    return Value(text=f"{names[name]} {format_percent(share)}", raw=name)


VIEW = View(key="trace_overlap", title="Overlap", needs=("trace",), table=build)
