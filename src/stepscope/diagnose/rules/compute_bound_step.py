"""Computation takes nearly all of the step on several ranks: good news.

What
----
Forward, backward and optimizer as a share of the step on the slowest rank, with little exposed communication and little
waiting for data. One finding per model, about the cell with the most ranks.

Why
---
Only the computation itself (lower precision, fused or compiled kernels, a better batch) or more ranks make such a job
faster.

Known problems
--------------
Backward computation that shares cores or memory bandwidth with communication takes longer than alone; all of it counts
as computation. On CPU ranks the optimizer is memory traffic.

References
----------
METRICS, A step: "compute-bound is good news and says so".
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.results.cell_facts import TimedCell, by_model, measured, timed_cells
from stepscope.results.evidence import Evidence

MIN_COMPUTE = Threshold(value=0.90, unit="share of the step", source="the complement of 10% for communication and data")
MAX_OTHER = Threshold(
    value=0.05, unit="share of the step, each of communication and data", source="both together are at most 10%"
)


def check(evidence: Evidence) -> Said:
    # Where a strategy communicates inside the passes, they are not computation alone.
    cells = [each for each in timed_cells(evidence, least_ranks=2) if each.cell.run.exposed_comm_ns is not None]
    if not cells:
        return Skipped(
            reason="no finished cell on several ranks has step times", command="stepscope bench --preset strong-scaling"
        )
    good = [each for each in cells if _is_bound(each)]
    if not good:
        best = max(cells, key=_compute)
        return (
            f"{best.name}: {format_percent(_compute(best))} of the step is computation, limit "
            f"{format_percent(MIN_COMPUTE.value)}; "
            f"exposed communication {format_percent(best.share('exposed_comm'))}, limit {format_percent(MAX_OTHER.value)}"
        )
    groups = by_model(good)
    return tuple(_finding(evidence, max(group, key=lambda e: (e.world_size, _compute(e)))) for group in groups)


def _compute(each: TimedCell) -> float:
    return each.share("forward") + each.share("backward_compute") + each.share("optimizer")


def _is_bound(each: TimedCell) -> bool:
    return (
        _compute(each) >= MIN_COMPUTE.value
        and each.share("exposed_comm") <= MAX_OTHER.value
        and each.share("data_wait") <= MAX_OTHER.value
    )


def _finding(evidence: Evidence, cell: TimedCell) -> Finding:
    phases = cell.phases
    run = cell.cell.run
    said = [
        f"{run.label}: forward {format_duration(phases.forward_ns)}, backward "
        f"{format_duration(phases.backward_compute_ns)}, optimizer {format_duration(phases.optimizer_ns)} of "
        f"{format_duration(cell.step_ns)}",
        f"exposed communication {format_percent(cell.share('exposed_comm'))}, waiting for data "
        f"{format_percent(cell.share('data_wait'))}",
    ]
    row = next((each for each in evidence.scaling if each.run_id == run.run_id), None)
    if row is not None and row.rating is not None:
        said.append(f"efficiency {format_percent(row.efficiency)}, {row.rating}")
    return Finding(
        severity="info",
        title=f"compute-bound: {format_percent(min(1.0, _compute(cell)))} of the step is computation on "
        f"{counted(cell.world_size, 'rank')}",
        evidence=tuple(said),
        confidence=measured(cell),
        advice=(
            Advice(
                text="speed up the computation (lower precision, compiled or fused kernels), or add ranks",
                command=again(evidence, cell.cell, ("world_size", [cell.world_size, 2 * cell.world_size])),
            ),
        ),
        subject=cell.name,
    )


RULE = Rule(
    name="compute-bound-step",
    symptom="computation takes nearly all of the step (good news)",
    needs=("cells",),
    look=check,
    good_news=True,
    protocol=2,
    thresholds={"compute": MIN_COMPUTE, "other": MAX_OTHER},
)
