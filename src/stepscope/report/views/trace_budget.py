"""Time budget of a trace: by rank, step and phase, idle time by cause, overlap of communication with computation."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.nouns import EXPOSED_COMM, EXPOSED_COMM_SHORT, MFU_CONVENTION
from stepscope.records.parts import TITLES
from stepscope.records.trace_budget import Parts, PhaseBudget, RankBudget
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import short_names
from stepscope.report.names import clean, file_part
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, stacks_chart
from stepscope.report.shared.traces import (
    PARTIAL,
    device_columns,
    gaps,
    many_note,
    parts_columns,
    rank_column,
    shared,
    standing_out,
    timed,
)
from stepscope.report.table import Column, Table, Value, duration, judged, lead_column, percent, tabled, whole, wording
from stepscope.report.vega import Chart, color
from stepscope.report.views import View

if TYPE_CHECKING:
    from stepscope.results.evidence import TraceEvidence


KINDS = {
    "computation": color("k-compute"),
    TITLES["unknown"]: color("k-other"),
    TITLES["waiting"]: color("k-late"),
    EXPOSED_COMM: color("k-exposed"),
    TITLES["copies"]: color("k-copies"),
    "idle": color("k-idle"),
}


def budget_charts(traces: Sequence[TraceEvidence]) -> Iterator[Chart]:
    """Yield one chart a trace: shares of each rank's window; of many ranks those that compute least."""
    from stepscope.traces.waits import waits_of

    for trace in traces:
        waiting = {rank: waits.exposed_ns for rank, waits in waits_of(trace.summary.collectives).items()}
        unknown = any(rank.unknown_ns for rank in trace.summary.ranks)
        rows = [
            row
            for rank in trace.summary.ranks
            if (row := _budget_row(rank, waiting.get(rank.facts.rank, 0), unknown=unknown)) is not None
        ]
        if len(rows) < 2:
            continue
        kept = sorted(rows, key=lambda row: row.parts[0])[:MAX_ROWS] if len(rows) > MAX_ROWS else rows
        name = clean(trace.name, 80)
        title = name + (f" ({len(kept)} of {len(rows)} ranks)" if len(kept) < len(rows) else "")
        colors = {kind: c for kind, c in KINDS.items() if kind != TITLES["unknown"] or len(kept[0].parts) == len(KINDS)}
        kinds = [TITLES["transfer"] if waiting and kind == EXPOSED_COMM else kind for kind in colors]
        means = [sum(parts) / len(kept) for parts in zip(*(row.parts for row in kept), strict=True)]
        shares = ", ".join(f"{format_percent(mean)} {kind}" for mean, kind in zip(means, kinds, strict=True) if mean)
        least = min(kept, key=lambda row: row.parts[0])
        caption = (
            f"What the device did over the trace of {title}, {counted(len(kept), 'rank')}: on average {shares}; least"
            f" computation: {least.name} with {least.text}. Exposed: under no computation."
        )
        spec = stacks_chart(title, kept, "share of the window (%)", 100.0, kinds, tuple(colors.values()), whole=1.0)
        yield Chart(file_part(name), title, caption, spec)


def _budget_row(rank_pass: RankPass, waiting_ns: int, *, unknown: bool) -> StackRow | None:
    """Return a rank's bar by kind of time; None: it has no budget."""
    if rank_pass.budget is None or not rank_pass.budget.parts.window_ns:
        return None
    parts = rank_pass.budget.parts
    transfer = parts.exposed_comm_ns - waiting_ns
    computed = (parts.compute_ns - rank_pass.unknown_ns, *((rank_pass.unknown_ns,) if unknown else ()))
    parts_ns = (*computed, waiting_ns, transfer, parts.exposed_memory_ns, parts.idle_ns)
    shares = tuple(part / parts.window_ns for part in parts_ns)
    return StackRow(f"rank {rank_pass.facts.rank}", shares, format_percent(shares[0], digits=0))


def budget_table(summary: TraceSummary) -> Table:
    """Return the table: one row a rank."""
    budgets = [(p, p.budget) for p in summary.ranks if p.budget is not None]
    usual = statistics.median([budget.parts.exposed_comm_fraction for _, budget in budgets] or [0.0])
    verdicts = {v.rank: v.verdict.kind for v in summary.verdicts}
    sources = {budget.source for _, budget in budgets}
    columns = list(parts_columns(lambda pair: _classified_parts(*pair)))
    unknown = ""
    if any(p.unknown_ns for p, _ in budgets):
        unknown = "unknown + "
        columns.insert(2, Column("unknown", "unknown", _unknown_value, duration))
    return tabled(
        "budget",
        "Time budget and overlap",
        standing_out(budgets, lambda pair: abs(pair[1].parts.exposed_comm_fraction - usual)),
        rank_column(lambda pair: pair[0].facts.rank),
        *columns,
        Column("mfu", "MFU", lambda pair: _mfu_or_none(pair[0]), percent, drop=4),
        Column("verdict", "bound by", lambda pair: verdicts.get(pair[0].facts.rank) or Value("", None)),
        footnotes=(
            f"compute + {unknown}{EXPOSED_COMM_SHORT} + exposed copies + idle = window; exposed: under no computation",
            *many_note(len(budgets), f"those farthest from the median share of {EXPOSED_COMM}"),
            *((f"MFU: {MFU_CONVENTION}",) if any(_mfu_or_none(p) is not None for p, _ in budgets) else ()),
            *(_CPU_NOTE for source in sources if source == "cpu_spans"),
        ),
    )


def _classified_parts(rank_pass: RankPass, budget: RankBudget) -> Parts:
    return replace(budget.parts, compute_ns=budget.parts.compute_ns - rank_pass.unknown_ns)


def _unknown_value(pair: tuple[RankPass, RankBudget]) -> Value:
    return timed(pair[0].unknown_ns, pair[1].parts.window_ns, worry=(0.05, 0.15))


def _mfu_or_none(rank_pass: RankPass) -> float | None:
    return None if rank_pass.utilisation is None else rank_pass.utilisation.mfu


_CPU_NOTE = "no device in this trace: compute = operators, communication = gloo's own spans"


_MARKED = {
    "range": "no ProfilerStep in this trace: steps are the job's own ranges that repeat",
    "optimizer": "no ProfilerStep in this trace: steps are from one Optimizer.step to the next",
}

NO_STEPS = (
    "no steps are marked in this trace: no ProfilerStep, no range (step, iteration, train_step) and no Optimizer.step that "
    "repeats"
)


def steps_table(summary: TraceSummary) -> Table:
    """Return the table: one row per step and rank, steps together."""
    steps = sorted((s for p in summary.ranks for s in p.steps), key=lambda s: (s.step, s.rank))
    notes = [_MARKED[by] for by in _MARKED if any(s.marked_by == by for s in steps)]
    if any(s.boundary == "host" for s in steps):
        notes.append("no launches recorded: steps are cut at the host's marks")
    kinds = dict.fromkeys(s.kind for s in steps)
    if len(kinds) > 1:
        lengths = {kind: [s.usual_ns for s in steps if s.kind == kind] for kind in kinds}
        notes.append(
            ", ".join(
                f"{len(ns)} of {kind}, median {format_duration(statistics.median(ns))}" for kind, ns in lengths.items()
            )
        )
    if any(s.start_up_ns for s in steps):
        cold = max(steps, key=lambda s: s.start_up_ns)
        notes.append(
            f"{format_duration(cold.start_up_ns)} of step {cold.step} is start-up, which is in no typical time"
        )
    for rank in summary.ranks:
        out = rank.outside
        if out is not None and (out.before_first_step or out.after_last_step):
            notes.append(
                f"rank {rank.facts.rank}: {counted(out.before_first_step, 'device event')} "
                f"({format_duration(out.before_ns)}) before the first step's work and "
                f"{counted(out.after_last_step, 'event')} after the last step's are in the rank's budget and in no step"
            )
    return tabled(
        "steps",
        "Steps",
        steps,
        lead_column("step", "step", "step", whole),
        rank_column(lambda s: s.rank),
        *((Column("kind", "kind", "kind"),) if len(kinds) > 1 else ()),
        *parts_columns(lambda s: s.parts),
        Column("host", "host", "host_ns", duration, drop=4),
        footnotes=(
            "a step begins with its mark, or where the device is done with earlier work (on the main stream, where the "
            "step's first work runs beside it); host: its mark on the host",
        ),
        notes=(*notes, *gaps(summary, "steps", lambda p: bool(p.steps), otherwise=NO_STEPS)),
    )


def phases_table(summary: TraceSummary) -> Table:
    """Return the table: one row per rank and phase; phases without any time are left out."""
    whole_ns = summary.windows_ns
    return tabled(
        "phases",
        "Phases",
        (p for rank in summary.ranks for p in rank.phases if _total_ns(p) or p.host_ns),
        rank_column(lambda p: p.rank),
        lead_column("phase", "phase", "phase"),
        Column("total", "total", lambda p: timed(_total_ns(p), whole_ns.get(p.rank, 0)), duration),
        *device_columns(lambda p: p, lambda p: whole_ns.get(p.rank, 0)),
        Column("host", "host", "host_ns", duration, drop=3),
        footnotes=("device work belongs to the phase that launched it, idle time to the phase that launches next",),
    )


def _total_ns(p: PhaseBudget) -> int:
    return p.compute_ns + p.exposed_comm_ns + p.exposed_memory_ns + p.idle_ns


CAUSES = {
    "start_up": "the host did what comes once, at its start",
    "sync": "the host waited for the device first",
    "data": "the host was loading data",
    "host_late": "the host had not launched yet",
    "launch_latency": "launched, not yet started",
    "kernel_gap": "gap of up to 10 us between queued kernels",
    "dependency": "longer gap between queued kernels",
    "outside_operators": "no operator ran: Python between operators, or waiting",
    "long_gap": "single long gap, no part of the usual step",
    "unknown": "launch or kernel not recorded",
    "pages": "nothing to do until pages of unified memory move",
}


def idle_table(summary: TraceSummary) -> Table:
    """Return the table: one row per rank and cause."""
    whole_ns = summary.windows_ns
    return tabled(
        "idle",
        "Idle time by cause",
        (i for rank in summary.ranks for i in sorted(rank.idle, key=lambda i: -i.idle_ns)),
        rank_column(lambda i: i.rank),
        lead_column("cause", "why the device idled", lambda i: wording(CAUSES[i.cause], i.cause)),
        Column("idle", "idle", lambda i: timed(i.idle_ns, whole_ns.get(i.rank, 0), worry=(0.1, 0.3)), duration),
        Column("gaps", "gaps", "gap_count", whole),
        Column("largest", "largest", "largest_ns", duration, drop=1),
    )


NAME = 25

NO_COMMUNICATION = "no communication in this trace: nothing to overlap"


def overlap_efficiency(parts: Parts) -> float | None:
    """Return overlap / the shorter of computation and communication: 1 where one hides wholly under the other.

    None without communication; 0 without computation.
    """
    if not parts.comm_ns:
        return None
    least = min(parts.compute_ns, parts.comm_ns)
    return parts.overlap_ns / least if least else 0.0


def overlap_table(summary: TraceSummary) -> Table:
    """Return the table: one row per rank for the whole capture, then one per step and rank.

    Ranks without communication are named in notes.
    """
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
        of_step = [(p, step, s.parts) for p in ranks for s in p.steps if s.step == step]
        items += standing_out(of_step, lambda x: x[2].exposed_comm_fraction)

    def of_time(parts: Parts) -> Value:
        share = parts.exposed_comm_fraction
        return percent(
            share, tone=judged(parts.exposed_comm_ns / parts.window_ns if parts.window_ns else 0.0, 0.1, 0.25)
        )

    return tabled(
        "overlap",
        "Overlap of communication with computation",
        items,
        rank_column(lambda i: i[0].facts.rank),
        lead_column("step", "step", lambda i: "all" if i[1] is None else i[1], whole),
        Column("comm", "comm", "2.comm_ns", duration),
        Column("hidden", "hidden", lambda i: shared(i[2].overlap_ns, i[2].comm_ns), duration),
        Column("exposed", "exposed", lambda i: shared(i[2].exposed_comm_ns, i[2].comm_ns), duration),
        Column("exposed_fraction", "of time", lambda i: of_time(i[2]), percent, short="time"),
        Column("overlap_efficiency", "efficiency", lambda i: overlap_efficiency(i[2]), percent, short="eff"),
        Column("hidden_under", "hidden mostly under", lambda i: _hiding_value(i[0], i[1], i[2], names), drop=1),
        footnotes=(
            "hidden, exposed: communication under computation and not, share of communication; "
            "of time: exposed / window or step",
            "efficiency: hidden / the shorter of computation and communication, 100% the most there can be",
            *(
                (f"{PARTIAL}: --show overlap,steps adds the steps and what hid it",)
                if any(p.partial for p in ranks)
                else ()
            ),
            *many_note(len(ranks), f"those with most {EXPOSED_COMM}"),
        ),
        notes=gaps(
            summary,
            "overlap",
            lambda p: p.budget is not None and p.budget.parts.comm_ns > 0,
            otherwise=NO_COMMUNICATION,
        ),
    )


def _hiding_value(rank_pass: RankPass, step: int | None, parts: Parts, names: dict[str, str]) -> Value | None:
    """Return the kernel or operator that hid most, with its share of what was hidden."""
    hidden: Counter[str] = Counter()
    for c in rank_pass.communication.collectives if rank_pass.communication else ():
        if step is None or c.step == step:
            for h in c.hidden_under:
                hidden[h.name] += h.hidden_ns
    if not hidden or not parts.overlap_ns:
        return None
    name, ns = hidden.most_common(1)[0]
    share = min(1.0, ns / parts.overlap_ns)
    return Value(f"{names[name]} {format_percent(share)}", name)


VIEWS = (
    View("trace_budget", "Time budget of a trace", table=budget_table, charts=budget_charts),
    View("trace_steps", table=steps_table),
    View("trace_phases", table=phases_table),
    View("trace_idle", table=idle_table),
    View("trace_overlap", table=overlap_table),
)
