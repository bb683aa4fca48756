"""How much communication computation hid, per rank and step, and which computation it was."""

from __future__ import annotations

from collections import Counter

from stepscope.records.trace_budget import Parts
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import short_names
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.report.tables._trace import (
    PARTIAL,
    duration,
    gaps,
    many_note,
    percent,
    shared,
    standing_out,
    words,
)
from stepscope.report.tables.trace_budget import timed

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
    rows = [
        _row(p, None, p.budget.parts, names)
        for p in standing_out(ranks, lambda p: p.budget.parts.exposed_comm_fraction if p.budget else 0)
        if p.budget
    ]
    steps = sorted({s.step for p in ranks for s in p.steps})
    for step in steps:
        each = [(p, s) for p in ranks for s in p.steps if s.step == step]
        rows += [
            _row(p, step, s.parts, names) for p, s in standing_out(each, lambda x: x[1].parts.exposed_comm_fraction)
        ]
    return Table(
        key="overlap",
        title="Overlap of communication with computation",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="step", title="step", role="identity", lead=True),
            Column(key="comm", title="comm", unit="ns"),
            Column(key="hidden", title="hidden", unit="ns"),
            Column(key="exposed", title="exposed", unit="ns"),
            Column(key="exposed_fraction", title="of time", short_title="time"),
            Column(key="overlap_efficiency", title="efficiency", short_title="eff"),
            Column(key="hidden_under", title="hidden mostly under", align="left", drop=1),
        ),
        rows=tuple(rows),
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
        )
        if rows
        else (),
        notes=gaps(
            summary,
            "overlap",
            lambda p: p.budget is not None and p.budget.parts.comm_ns > 0,
            otherwise=NO_COMMUNICATION,
        ),
    )


TABLE = TableKind(key="overlap", title="Overlap", needs=("trace",), build=build)


def _row(each: RankPass, step: int | None, parts: Parts, names: dict[str, str]) -> Row:
    whole = Value(text="all", raw="all") if step is None else words(str(step), raw=step)
    return Row(
        values=(
            Value(text=str(each.facts.rank), raw=each.facts.rank),
            whole,
            duration(parts.comm_ns),
            shared(parts.overlap_ns, parts.comm_ns),
            shared(parts.exposed_comm_ns, parts.comm_ns),
            _of_time(parts),
            percent(overlap_efficiency(parts)),
            _under(each, step, parts, names),
        )
    )


def _of_time(parts: Parts) -> Value:
    tone: Tone = timed(parts.exposed_comm_ns, parts.window_ns, worry=(0.1, 0.25)).tone
    return percent(parts.exposed_comm_fraction, tone=tone)


def _under(each: RankPass, step: int | None, parts: Parts, names: dict[str, str]) -> Value:
    """The kernel or operator that hid most, with its share of what was hidden."""
    hidden: Counter[str] = Counter()
    for c in each.communication.collectives if each.communication else ():
        if step is None or c.step == step:
            for h in c.hidden_under:
                hidden[h.name] += h.hidden_ns
    if not hidden or not parts.overlap_ns:
        return unknown()
    name, ns = hidden.most_common(1)[0]
    share = min(1.0, ns / parts.overlap_ns)
    return Value(text=f"{names[name]} {share:.0%}", raw=name)
