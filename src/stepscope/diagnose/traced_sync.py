"""Gradient reductions without overlap, as traces show them: launched after the backward pass, or waited for in it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.outcome import Statement
from stepscope.diagnose.trace_facts import WORTH, read_in_full, severity_of, trace_command, unread, window_ns
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_collectives import RankWaitTotal
from stepscope.records.trace_rules import GradientSync, SyncPlace
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence
from stepscope.traces.waits import waits_of

MOSTLY = 0.9
"""Share of the reductions' time that decides where a job reduces: the rest is losses and counters."""

FORWARD = 0.05
"""More of their time than this before the backward pass: reductions of activations (tensor parallel), not of gradients."""

HIDDEN = 0.05
"""Reductions inside the backward pass of which less than this is hidden do not overlap."""


def traced_sync(job: TraceEvidence) -> Statement:
    """A finding where gradients are reduced after backward, or inside it and waited for one by one."""
    ranks = [(p, p.gradient_sync) for p in read_in_full(job.summary) if p.gradient_sync is not None]
    if not ranks:
        return unread(job.summary, "no recorded step has a backward pass and reductions of gradients")
    total = {place: sum(getattr(s, place).total_ns for _, s in ranks) for place in ("before", "inside", "after")}
    everything = sum(total.values())
    if not everything:
        return Skipped(reason="reductions were recorded without a duration")
    waits = waits_of(job.summary.collectives)
    exposed = median(_transfer_ns(p, waits, s.inside, s.after) / window_ns(p) for p, s in ranks)
    before, after = total["before"] / everything, total["after"] / everything
    if before > FORWARD:
        return f"{format_percent(before)} of the reductions belong to the forward pass"
    if exposed < WORTH:
        return f"exposed reductions transfer for {format_percent(exposed)} of the time, limit {format_percent(WORTH)}"
    if after >= MOSTLY:
        return _finding(job, ranks, waits, exposed, late=True)
    hidden = 1 - sum(s.inside.exposed_ns for _, s in ranks) / max(1, total["inside"])
    several = all(s.inside.calls >= 2 * s.steps for _, s in ranks)
    if any(row.wrapper == "ddp" for p, _ in ranks for row in p.buckets):
        return (
            f"DistributedDataParallel reduces in buckets: {format_percent(max(0.0, hidden))} of it hides under backward"
        )
    if total["inside"] >= MOSTLY * everything and hidden < HIDDEN and several:
        return _finding(job, ranks, waits, exposed, late=False)
    return (
        f"{format_percent(after)} of the reductions come after backward; "
        f"{format_percent(max(0.0, hidden))} of those inside it is hidden"
    )


def _transfer_ns(each: RankPass, waits: Mapping[int, RankWaitTotal], *places: SyncPlace) -> int:
    """Exposed time of these reductions without what later ranks cause: a shorter wait is not overlap's to give."""
    exposed = sum(place.exposed_ns for place in places)
    waited = waits.get(each.facts.rank)
    if waited is None:
        return exposed
    return exposed - sum(
        waited.exposed_by_call[i] + waited.ahead_by_call[i] for place in places for i in place.positions
    )


def _finding(
    job: TraceEvidence,
    ranks: list[tuple[RankPass, GradientSync]],
    waits: Mapping[int, RankWaitTotal],
    exposed: float,
    *,
    late: bool,
) -> Finding:
    backward = median(_backward(p) for p, _ in ranks)
    calls = sum(s.after.calls if late else s.inside.calls for _, s in ranks)
    steps = sum(s.steps for _, s in ranks)
    each = median(_transfer_ns(p, waits, s.after if late else s.inside) / s.steps for p, s in ranks)
    where = (
        "gradients are reduced after backward"
        if late
        else "gradients are reduced inside backward and waited for one by one"
    )
    remedy = (
        "reduce during the backward pass: DistributedDataParallel, or hooks on buckets of your own"
        if late
        else "start reductions with async_op=True and wait for all of them once, after backward; DistributedDataParallel "
        "does both"
    )
    return Finding(
        severity=severity_of(exposed),
        title=f"{where}: {format_percent(exposed)} of the time is exposed communication",
        evidence=(
            f"{calls / steps:,.0f} reductions a step, {format_duration(each)} of it exposed, in {counted(steps, 'step')} "
            f"of {counted(len(ranks), 'rank')}",
            f"the backward pass computes for {format_percent(backward)} of the time, the most that overlap can hide",
        ),
        stake_fraction=min(exposed, backward),
        confidence="measured by launch time; overlap gains less on CPUs that also run the communication",
        advice=(Advice(text=remedy, command=trace_command(job, "--show overlap,phases,collectives")),),
    )


def _backward(each: RankPass) -> float:
    return sum(p.compute_ns for p in each.phases if p.phase == "backward") / window_ns(each)
