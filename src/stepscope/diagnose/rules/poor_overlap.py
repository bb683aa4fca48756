"""Communication is exposed although it could hide under the backward pass.

What
----
Exposed communication is the time from the last local gradient to all gradients usable, on the last rank of each step,
which does not wait (`straggler` reports waiting). The rule judges its share of the step and how much of it is
avoidable: the bucket timeline prices the cell's own buckets (backward profile, measured collectives) and gives the
minimum exposed time. Without measured collectives, a `naive` cell of the same work in the run provides the bound: its
blocking all-reduces are the communication, and at most the length of the backward pass can hide.

Why
---
No rank computes during exposed communication. Time above the bound can be recovered without changing the model: other
buckets, fewer host synchronisations in the backward pass, a strategy that launches earlier.

Known problems
--------------
On CPU ranks that share cores with gloo's threads, communication is computation, and overlap gains nothing there,
whatever the timeline predicts. Without a bound the stake is the maximum that overlap could recover.

References
----------
Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.3 (overlap) and 5.3 (bucket sizes).
docs/reference/metrics.md, One step: exposed communication, hidden fraction, the bound of a timeline.
"""

from __future__ import annotations

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.bounds import OF_STEP
from stepscope.diagnose.commands import again, profiled
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, severity_of, skipped
from stepscope.predict.run_buckets import naive_twin
from stepscope.predict.specs import specs_of
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.cell_facts import TimedCell, by_model, exposed, measured, others, timed_cells
from stepscope.results.comm_costs import CommCosts, comm_costs, command_for
from stepscope.results.evidence import Evidence
from stepscope.results.scaling import shards
from stepscope.results.sweeps import inside_backward, plan_of

MIN_AVOIDABLE = Limit(
    0.05,
    unit="share of the step",
    source="timeline predictions are within 3% of measured steps (2 Gbit emulated network, 2026-11): less is model error",
)
_MODEL_ERROR = 0.03
"""The timeline's own, as in MIN_AVOIDABLE: so much more exposed than all communication takes is still none hidden."""


@record
class _Judged:
    """One cell: exposed communication, the least it could be (None: unknown), how long communication is, why so."""

    cell: TimedCell
    exposed_ns: float
    waiting_ns: float
    bound_ns: float | None
    comm_ns: float | None
    basis: str

    @property
    def share(self) -> float:
        return self.exposed_ns / self.cell.step_ns

    @property
    def avoidable(self) -> float:
        """Share of the step that better overlap returns at most: of all communication, as far as that is known; what
        is exposed beyond it is something else.
        """
        if self.bound_ns is not None:
            most = self.exposed_ns if self.comm_ns is None else min(self.exposed_ns, self.comm_ns)
            return max(0.0, most - self.bound_ns) / self.cell.step_ns
        return min(self.exposed_ns, self.cell.phases.backward_compute_ns) / self.cell.step_ns


def check(evidence: Evidence) -> Statement:
    """Look for: communication is exposed although it could hide under the backward pass."""
    cells = [cell for cell in timed_cells(evidence, least_ranks=2) if inside_backward(plan_of(cell.spec))]
    if not cells:
        return skipped(
            "no finished cell on several ranks overlaps communication with backward",
            "stepscope bench --preset naive-vs-overlapped",
        )
    costs = comm_costs(evidence)
    judged = {id(cell): case for cell in cells if (case := _judged_cell(evidence, cell, costs)) is not None}
    if not judged:
        return skipped("no cell has steps that all ranks recorded")
    firing = [case for case in judged.values() if case.share > OF_STEP and case.avoidable > MIN_AVOIDABLE]
    findings = []
    for group in by_model(case.cell for case in firing):
        ranked = sorted(group, key=lambda cell: -judged[id(cell)].avoidable)
        rest = others(ranked, lambda cell: f"({format_percent(judged[id(cell)].share)} exposed)")
        findings.append(_poor_overlap_finding(evidence, judged[id(ranked[0])], rest))
    worst = max(judged.values(), key=lambda case: case.share)
    return findings or f"{worst.cell.name}: {format_percent(worst.share)} of the step is {EXPOSED_COMM}, " + (
        f"limit {format_percent(OF_STEP)}"
        if worst.share <= OF_STEP
        else f"of which overlap could recover {format_percent(worst.avoidable)} ({worst.basis})"
    )


def _judged_cell(evidence: Evidence, timed: TimedCell, costs: CommCosts | None) -> _Judged | None:
    """Return what a cell exposes, and the least that it could; None where it was not measured."""
    net = exposed(timed.cell.result)
    if net is None:
        return None
    bound, comm, basis = _least_exposed(evidence, timed, costs)
    return _Judged(
        cell=timed, exposed_ns=net.net_ns, waiting_ns=net.waiting_ns, bound_ns=bound, comm_ns=comm, basis=basis
    )


def _least_exposed(
    evidence: Evidence, timed: TimedCell, costs: CommCosts | None
) -> tuple[float | None, float | None, str]:
    """Return (least exposed time, time of all communication, what says so), ns; None where nothing is recorded."""
    result = timed.cell.result
    if costs is not None:
        timeline = costs.timeline(result)
        if not isinstance(timeline, str):
            return float(timeline.exposed_ns), float(timeline.comm_ns), "from the timeline of its own buckets"
    twin = naive_twin([cell.result for cell in evidence.cells], result)
    blocking = None if twin is None else exposed(twin)
    backward = [s.backward.backward_ns for s in result.summaries if s.backward is not None]
    if blocking is None or not backward:
        return None, None, "without measured collectives or a naive cell of the same work"
    bound = max(0.0, blocking.net_ns - max(backward))
    return (bound, blocking.net_ns, "from the same gradients reduced after backward (naive) and the length of backward")


def _poor_overlap_finding(evidence: Evidence, worst: _Judged, rest: tuple[str, ...]) -> Finding:
    """Return the finding, with evidence, stake and advice: communication is exposed although it could hide under the
    backward pass."""
    cell, spec = worst.cell, worst.cell.spec
    hidden = ""
    if worst.bound_ns is not None and worst.comm_ns:
        bound, took = format_percent(1 - worst.bound_ns / worst.comm_ns), format_duration(worst.comm_ns)
        hidden = (
            f"{format_percent(max(0.0, 1 - worst.exposed_ns / worst.comm_ns))} of the {took} of communication is hidden; "
            f"{bound} could be ({worst.basis})"
            if worst.exposed_ns <= (1 + _MODEL_ERROR) * worst.comm_ns
            else f"the hidden share is unknown: exposed time exceeds the {took} of all communication alone "
            f"({worst.basis}); communication is slower beside computation, or ranks wait; {bound} of it could be hidden"
        )
    bounded = worst.bound_ns is not None
    if cell.step.low is None:
        confidence = measured(cell)
    elif not bounded:
        confidence = f"likely: how much could be hidden is unknown {worst.basis}"
    elif spec.backend == "gloo":
        confidence = (
            "likely: the bound is a model; CPU ranks communicate with the cores that compute, where overlap gains less"
        )
    else:
        confidence = "likely: the bound is a model of the step"
    has_buckets = "bucket_cap_mb" in specs_of(spec).strategy.options.model_fields
    return finding(
        f"{format_percent(worst.share)} of the step is {EXPOSED_COMM}"
        + (f"; better overlap could recover {format_percent(worst.avoidable)}" if bounded else ""),
        f"{EXPOSED_COMM}: {format_duration(worst.exposed_ns)} of a step of {format_duration(cell.step_ns)}"
        f" ({format_percent(worst.share)})",
        hidden,
        worst.waiting_ns > 0.02 * cell.step_ns
        and f"waiting for the last rank takes another {format_duration(worst.waiting_ns)}",
        rest,
        severity=severity_of(worst.avoidable) if bounded else "warning",
        stake=worst.avoidable,
        share=worst.share,
        confidence=confidence,
        advice=[
            not bounded
            and ("measure the collectives to learn how much could be hidden", command_for(spec, run=cell.run.source)),
            has_buckets
            and (
                "try other bucket sizes: smaller buckets start earlier",
                again(evidence, cell.cell, ("strategy_options.bucket_cap_mb", [1, 2, 4, 8, 16, 25])),
            ),
            not has_buckets
            and shards(spec.strategy)
            and (
                "try other units: each gather and reduction travels beside the computation of the next",
                "stepscope bench --preset fsdp-unit-size",
            ),
            (
                "inspect the step: find the bucket that starts late and what the host does meanwhile",
                profiled(evidence, cell.cell),
            ),
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="communication is exposed although it could hide under the backward pass",
    needs=("cells",),
    look=check,
    kind="communication-bound",
    protocol=3,
    thresholds={"exposed": OF_STEP, "avoidable": MIN_AVOIDABLE},
)
