"""Gradients are reduced after the whole backward pass: nothing overlaps.

What
----
Cells whose collectives all follow the backward pass and take a large share of the step. Overlap saves at most the
shorter of communication and backward pass; if the same run measured a strategy that overlaps on the same work, its gain
replaces the estimate, also if there is none.

In traces of any job: reductions launched after the last work of the autograd engine in the step (nine tenths of them,
by time), or inside it but waited for one by one, so that none is hidden. Reductions of the forward pass (tensor
parallel) do not count as gradients.

Why
---
First versions of distributed training often reduce gradient by gradient after backward, which pays every latency and
exposes all of it.

Known problems
--------------
On CPU ranks whose cores also run gloo's threads, communication is computation and overlap gains nothing (2 ranks on 2
cores, loopback: 0.9x to 1.2x, 2026-11). A measured cell therefore outranks the estimate.

References
----------
Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.1 (the naive solution).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import OF_STEP, OF_WINDOW
from stepscope.diagnose.commands import again
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import (
    WORTH,
    Finding,
    Limit,
    Rule,
    Statement,
    advise,
    each_job,
    finding,
    severity_of,
    skipped,
    together,
)
from stepscope.diagnose.trace_facts import read_in_full, unread, window_ns
from stepscope.diagnose.unit_facts import message_cost
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_collectives import RankWaitTotal
from stepscope.records.trace_rules import GradientSync, SyncPlace
from stepscope.records.trace_summary import RankPass
from stepscope.results.cell_facts import TimedCell, by_model, exposed, others, timed_cells
from stepscope.results.evidence import Evidence, TraceEvidence
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
        return skipped("reductions were recorded without a duration")
    waits = waits_of(job.summary.collectives)
    exposed = median(_transfer_ns(p, waits, s.inside, s.after) / window_ns(p) for p, s in ranks)
    before, after = total["before"] / everything, total["after"] / everything
    if before > FORWARD:
        return f"{format_percent(before)} of the reductions belong to the forward pass"
    if exposed < WORTH:
        return f"exposed reductions transfer for {OF_WINDOW.of(exposed)}, limit {format_percent(WORTH)}"
    late = after >= MOSTLY
    if not late:
        hidden = 1 - sum(s.inside.exposed_ns for _, s in ranks) / max(1, total["inside"])
        text = format_percent(max(0.0, hidden))
        if any(row.wrapper == "ddp" for p, _ in ranks for row in p.buckets):
            return f"DistributedDataParallel reduces in buckets: {text} of it hides under backward"
        if any(p.units is not None for p, _ in ranks):
            return "the reductions are those of sharded units (FSDP), which have rules of their own"
        several = all(s.inside.calls >= 2 * s.steps for _, s in ranks)
        if total["inside"] < MOSTLY * everything or hidden >= HIDDEN or not several:
            return f"{format_percent(after)} of the reductions come after backward; {text} of those inside it is hidden"
    backward = median(_backward_ns(p) / window_ns(p) for p, _ in ranks)
    steps = sum(s.steps for _, s in ranks)
    many = f"{sum(s.after.calls if late else s.inside.calls for _, s in ranks) / steps:,.0f} reductions a step"
    exposed_ns = median(_transfer_ns(p, waits, s.after if late else s.inside) / s.steps for p, s in ranks)
    where = (
        "gradients are reduced after backward"
        if late
        else "gradients are reduced inside backward and waited for one by one"
    )
    stake = median(_returned_share(job, p, s, _transfer_ns(p, waits, s.inside, s.after)) for p, s in ranks)
    own = (
        "reduce buckets of gradients from hooks, during the backward pass"
        if late
        else "start reductions with async_op=True and wait for all of them once, after backward"
    )
    look = "--show overlap,phases,collectives"
    return finding(
        f"{where}: {OF_WINDOW.of(exposed)} is {EXPOSED_COMM}",
        f"{many}, {format_duration(exposed_ns)} of it exposed, in {counted(steps, 'step')} of {counted(len(ranks), 'rank')}",
        f"the backward pass computes for {OF_WINDOW.of(backward)}; in buckets beside it, "
        f"{format_percent(max(0.0, exposed - stake))} would stay exposed, by this job's own transfers",
        severity=severity_of(exposed),
        cause=f"{where}: {many}",
        stake=stake,
        confidence="measured by launch time; overlap gains less on CPUs that also run the communication",
        advice=[
            advise(
                "wrap the model in DistributedDataParallel: it sends few large messages, during the backward pass",
                look,
                key="wrap in ddp",
            ),
            advise(own, None if facts_of(job.summary).replicated else look, key="async reductions"),
        ],
    )


def _transfer_ns(rank: RankPass, waits: Mapping[int, RankWaitTotal], *places: SyncPlace) -> int:
    """Exposed time of these reductions without what later ranks cause: a shorter wait is not overlap's to give."""
    exposed = sum(place.exposed_ns for place in places)
    waited = waits.get(rank.facts.rank)
    if waited is None:
        return exposed
    return exposed - sum(
        waited.exposed_by_call[i] + waited.ahead_by_call[i] for place in places for i in place.positions
    )


def _returned_share(job: TraceEvidence, rank: RankPass, sync: GradientSync, exposed_ns: int) -> float:
    """Share of the window that fewer, larger messages beside the backward pass return: what is exposed, but for what the
    best buckets of the same bytes leave. Where sizes are unknown, what the backward pass could hide."""
    room = _backward_ns(rank)
    calls = rank.communication.collectives if rank.communication is not None else ()
    places = [i for place in (sync.inside, sync.after) for i in place.positions if i < len(calls)]
    sizes = [calls[i].size_bytes or 0 for i in places]
    cost = message_cost(job.summary)
    if cost is None or not all(sizes) or not sizes:
        returned = float(min(exposed_ns, room))
    else:
        left = cost.least_exposed(sum(sizes) / sync.steps, room / sync.steps)
        returned = max(0.0, exposed_ns - sync.steps * left)
    return min(returned, exposed_ns) / window_ns(rank)


def _backward_ns(rank: RankPass) -> int:
    return sum(p.compute_ns for p in rank.phases if p.phase == "backward")


MIN_GAIN = Limit(
    0.03,
    unit="share of the step, if both were measured",
    source="medians of equal cells on a quiet machine spread by 2% (2026-11); plus a margin",
)


def check(evidence: Evidence) -> Statement:
    """Judge cells by their plan and phases, traces of other jobs by where their reductions are launched."""
    measured = {cell.cell_id for cell in evidence.cells}
    traces = tuple(t for t in evidence.traces if t.cell_id not in measured)
    outcomes: list[Statement] = []
    if evidence.cells:
        outcomes.append(_cells_statement(evidence))
    if traces:
        outcomes.append(each_job(traces, traced_sync))
    return together(outcomes)


Stake = tuple[float, float, str, bool]
"""What overlap returns at most, share of communication, both in words, whether that was measured."""


def _cells_statement(evidence: Evidence) -> Statement:
    """Report cells whose collectives all come after backward and take more than OF_STEP there. What reads cells is imported
    where there are some: `trace` starts without it."""
    from stepscope.results.sweeps import after_backward, plan_of

    cells = timed_cells(evidence, least_ranks=2)
    if not cells:
        return skipped("no finished cell on several ranks")
    blocking = [c for c in cells if after_backward(plan_of(c.spec))]
    if not blocking:
        return f"{counted(len(cells), 'cell')}: all of them reduce during the backward pass"
    overlapping = [c for c in cells if c not in blocking]
    stakes = {id(c): _cell_stake(c, overlapping) for c in blocking}
    firing = by_model(c for c in blocking if stakes[id(c)][0] > 0)
    worst = max(blocking, key=lambda c: stakes[id(c)][1])
    ranked = (sorted(group, key=lambda c: -stakes[id(c)][0]) for group in firing)
    return [
        _blocking_finding(evidence, cells, stakes[id(cells[0])]) for cells in ranked
    ] or f"{worst.name}: {stakes[id(worst)][2]}"


def _cell_stake(cell: TimedCell, overlapping: list[TimedCell]) -> Stake:
    """Return what is at stake in a cell; a stake of 0 is not worth a finding."""
    from stepscope.predict.run_buckets import same_work

    exposure = exposed(cell.cell.result)
    net = 0.0 if exposure is None else exposure.net_ns
    share = net / cell.step_ns
    sentence = f"{format_percent(share)} of the step is communication after backward"
    if share <= OF_STEP:
        return 0.0, share, f"{sentence}, limit {format_percent(OF_STEP)}", False
    alike = (c for c in overlapping if same_work(c.cell.result, cell.cell.result))
    best = min(alike, key=lambda c: c.step_ns, default=None)
    faster = None if best is None else best.step.below(cell.step)
    if best is None or faster is None:
        return min(net, cell.phases.backward_compute_ns) / cell.step_ns, share, sentence, False
    sentence += (
        f"; measured: {best.run.label} takes {format_duration(best.step_ns)} against {format_duration(cell.step_ns)}"
    )
    gain = 1 - best.step_ns / cell.step_ns if faster else 0.0
    return (gain if gain > MIN_GAIN else 0.0), share, sentence, True


def _blocking_finding(evidence: Evidence, ranked: list[TimedCell], stake: Stake) -> Finding:
    """Return the finding of cells that reduce gradients after the backward pass."""
    from stepscope.results.sweeps import plan_of

    cell, (most, share, sentence, sure) = ranked[0], stake
    plan = plan_of(cell.spec)
    size = "gradient by gradient" if len(plan) > 1 else "in one piece"
    return finding(
        f"gradients are reduced after backward: {format_percent(share)} of the step is {EXPOSED_COMM}",
        sentence,
        f"{counted(len(plan), 'blocking collective')} a step, {size}",
        others(ranked, lambda c: f"({format_duration(c.step_ns)} a step)"),
        stake=most,
        share=share,
        confidence="measured: both strategies ran here"
        if sure
        else "likely: no overlapping cell was measured well enough",
        advice=[
            advise(
                "reduce during the backward pass: DistributedDataParallel, or buckets of your own",
                again(evidence, cell.cell, ("strategy", ["naive", "bucketed", "ddp"])),
            )
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="gradients are reduced after the backward pass instead of during it",
    any_of=("cells", "traces"),
    look=check,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"share": OF_STEP, "gain": MIN_GAIN, "in a trace": OF_WINDOW},
)
