"""More ranks give less than the ideal: which part of the step lost the rest.

What
----
Two traced jobs on different numbers of ranks, or two runs that the user names: speed-up, efficiency, and the loss (time
above the ideal) by part: compute, exposed communication, waiting for a peer, input, copies, idle time. The batches, or
the FLOP of a rank's matrix products (recorded shapes), decide between strong and weak scaling; without either, both
readings are given.

Why
---
An efficiency does not say what to change; the part with the largest share of the loss does.

Known problems
--------------
Traced steps are few and profiling slows the host, so the efficiency of a timed run may differ. Waiting is separated
from transfer only if all ranks' clocks agree. Parts are means over ranks: a straggler appears as compute on its rank
and as waiting on the others.

References
----------
docs/reference/metrics.md, Scaling, One step.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import trace_command
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.comparison import ScalingBudget, ScalingReading
from stepscope.records.finding import Severity
from stepscope.results.evidence import Evidence
from stepscope.results.scaling import FAIR, GOOD, beside_ranks
from stepscope.results.scaling_budget import PARTS, loss, ranked, verdict

GOOD_FROM = Limit(GOOD, unit="efficiency", source="rated good above 0.80")
POOR_BELOW = Limit(FAIR, unit="efficiency", source="rated fair above 0.50, else poor")
_LOOK = {
    "compute": ("the work per rank grew: compare the kernels of both jobs", "--show kernels,operators"),
    "unknown": ("state whether these kernels compute or communicate: --communication PATTERN", "--show kernels"),
    "exposed_comm": ("hide or shrink the communication: find the exposed collectives",
                     "--show overlap,collectives,buckets"),
    "waiting": ("ranks wait for each other: find the rank that comes last, and why", "--show stragglers,collectives"),
    "input": ("the loader is too slow: load in advance, or from a faster source", "--show idle,phases"),
    "copies": ("copies are exposed: find them", "--show copies"),
    "idle": ("the device waits for the host: find what the host does in the gaps", "--show idle,launches"),
}  # fmt: skip


def check(evidence: Evidence) -> Statement:
    """Look for: a part of the step limits the gain of more ranks."""
    by_id = {run.run_id: run for run in evidence.runs}
    budgets = [
        budget
        for budget in evidence.scaling_budgets
        if len(of := [by_id[key] for key in budget.run_ids if key in by_id]) < 2
        or not beside_ranks(of[0], of[-1], among=len(by_id))
    ]
    if not budgets:
        return skipped("no run has a baseline on fewer ranks that differs in nothing else")
    best = max(budgets, key=lambda budget: budget.readings[0].efficiency)
    efficiency = format_percent(best.readings[0].efficiency)
    return [_scaling_loss_finding(evidence, budget) for budget in budgets if not _is_covered(budget)] or (
        f"{best.run}: efficiency {efficiency}; good above {format_percent(GOOD_FROM)}"
    )


def _is_covered(budget: ScalingBudget) -> bool:
    """Return whether good-scaling, impossible-figures or negative-scaling says it all: timed runs without parts."""
    first = budget.readings[0]
    if budget.traced or len(budget.readings) > 1:
        return False
    return first.efficiency > GOOD_FROM or (first.rating == "negative" and not first.parts)


def _scaling_loss_finding(evidence: Evidence, budget: ScalingBudget) -> Finding:
    """Return the finding, with evidence, stake and advice: a part of the step limits the gain of more ranks."""
    first, decided = budget.readings[0], len(budget.readings) == 1
    ranks = f"{counted(budget.world_size, 'rank')} against {budget.base_world_size}"
    both = " or ".join(f"{reading.speedup:.2f}x as {reading.scaling} scaling" for reading in budget.readings)
    good = first.efficiency > GOOD_FROM
    severity: Severity = "problem" if first.efficiency <= POOR_BELOW else "warning"
    return finding(
        f"{first.speedup:.2f}x on {ranks}: efficiency {format_percent(first.efficiency)}{_main_cause(first)}"
        if decided
        else f"{ranks}: {both}; no file decides which",
        verdict(budget),
        [f"{reading.scaling or 'the same data'}: {loss(budget, reading)}" for reading in budget.readings],
        decided
        and bool(first.scaling and budget.decided_by)
        and f"{first.scaling} scaling, decided by: {budget.decided_by}",
        budget.no_parts,
        severity="warning" if not decided else "info" if good else severity,
        stake=1 - first.efficiency if decided and not good else None,
        confidence=f"measured: {budget.basis}" + (f"; {budget.no_interval}" if budget.no_interval else ""),
        advice=_scaling_loss_advice(evidence, budget),
        of=f"{budget.run} against {budget.base}",
        runs=budget.run_ids,
    )


def _main_cause(reading: ScalingReading) -> str:
    """The part with most of the loss, where there is a loss worth naming."""
    parts = [part for part in ranked(reading) if part.key != "rest"]
    if reading.efficiency > 1 - MIN_LOSS or not parts or parts[0].lost_ns <= 0:
        return ""
    share = parts[0].lost_ns / reading.lost_ns
    most = "all" if share >= 1 else format_percent(share)  # others may have gained what this part lost beyond the whole
    return f"; {most} of the loss is {PARTS[parts[0].key]}"


def _scaling_loss_advice(evidence: Evidence, budget: ScalingBudget) -> Iterator[Advices]:
    """Yield what shows the kind of scaling, or where the loss is."""
    reading = budget.readings[0]
    job = next((trace for trace in evidence.traces if trace.name == budget.run), None)
    if len(budget.readings) > 1:
        yield "state --scaling strong or --scaling weak; traces with record_shapes=True decide it"
    elif not budget.traced:
        if budget.no_parts is not None:
            text = "record a few steps of both with torch.profiler to see which part grew"
            yield (text, "stepscope trace --help")
    elif job is not None and reading.efficiency <= GOOD_FROM:
        keys = [part.key for part in ranked(reading) if part.lost_ns > 0]
        for text, options in [_LOOK[key] for key in keys if key in _LOOK][:2]:
            yield (text, trace_command(job, options))


MIN_LOSS = Limit(0.05, unit="loss / time", source="rated excellent above 0.90; half of that")

RULE = Rule(
    symptom="a part of the step limits the gain of more ranks",
    needs=("scaling_budgets",),
    look=check,
    folded=True,
    protocol=2,
    thresholds={"good": GOOD_FROM, "poor": POOR_BELOW, "loss": MIN_LOSS},
)
