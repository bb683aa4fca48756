"""Computation takes nearly all the time: good news.

What
----
Steps of `bench` on several ranks: forward, backward and optimizer as a share of the step on the slowest rank, with
little exposed communication and little waiting for data; one finding per model, about the cell with the most ranks.
Traces: computation over the window, overlapping streams counted once; median over ranks. Fires from
{in a trace} on: communication, waiting, idle time and copies together take the rest.

Why
---
Further gains are in the computation itself (precision, fused or compiled kernels, recomputation, a better batch) or in
more ranks.

Known problems
--------------
A busy device is not an efficient one: MFU shows how efficient the computation is. On CPU jobs operators count as
computation, including their internal waits. Backward computation that shares cores or memory bandwidth with
communication takes longer than alone; all of it counts as computation. A cell whose efficiency is poor does not count:
its computation grew with the ranks.

References
----------
docs/reference/metrics.md, One step; published advice on reading the
analysis ("Good! System is well-utilized").
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import LIMITS, bound
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import WORTH, Finding, Limit, Rule, Statement, advise, finding, skipped
from stepscope.diagnose.trace_facts import cut_short, on_device, read_in_full, unread
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import TITLES
from stepscope.results.cell_facts import TimedCell, by_model, measured, timed_cells, traced
from stepscope.results.evidence import Evidence, TraceEvidence

MAX_OTHER = Limit(
    WORTH / 2, unit="share of the step, each of communication and data", source="both together are not worth a finding"
)
MIN_COMPUTE, MOSTLY = (LIMITS[recorder]["compute-bound"] for recorder in ("cell", "trace"))


def check(evidence: Evidence) -> Statement:
    """Look for: computation takes nearly all the time (good news)."""
    # Where a strategy communicates inside the passes, they are not computation alone.
    cells = [cell for cell in timed_cells(evidence, least_ranks=2) if cell.run.exposed_comm_ns is not None]
    if not cells:
        return skipped("no finished cell on several ranks has step times", "stepscope bench --preset strong-scaling")
    rows = {row.run_id: row for row in evidence.scaling}

    def rating(cell: TimedCell) -> str | None:
        row = rows.get(cell.run.run_id)
        return None if row is None else row.rating

    def report(cell: TimedCell) -> Finding:
        """Return the finding of a cell: how its computation divides."""
        row = rows.get(cell.run.run_id)
        phases = cell.phases
        return finding(
            f"compute-bound: {format_percent(min(1.0, _compute_share(cell)))} of the step is computation on "
            f"{counted(cell.world_size, 'rank')}",
            f"{cell.run.label}: forward {format_duration(phases.forward_ns)}, backward "
            f"{format_duration(phases.backward_compute_ns)}, optimizer {format_duration(phases.optimizer_ns)} of "
            f"{format_duration(cell.step_ns)}",
            f"{EXPOSED_COMM} {format_percent(cell.share('exposed_comm'))}, waiting for data "
            f"{format_percent(cell.share('data_wait'))}",
            row is not None and row.rating is not None and f"efficiency {format_percent(row.efficiency)}, {row.rating}",
            severity="info",
            confidence=measured(cell),
            advice=[
                advise(
                    "speed up the computation (lower precision, compiled or fused kernels), or add ranks",
                    again(evidence, cell.cell, ("world_size", [cell.world_size, 2 * cell.world_size])),
                )
            ],
            of=cell.run,
            job=traced(evidence, cell),
        )

    computing = [
        cell
        for cell in cells
        if bound("compute-bound", _compute_share(cell), "cell")
        and max(cell.share("exposed_comm"), cell.share("data_wait")) <= MAX_OTHER
    ]
    good = [cell for cell in computing if rating(cell) not in ("poor", "negative")]
    if computing and not good:
        first = computing[0]
        return (
            f"{first.name}: {format_percent(min(1.0, _compute_share(first)))} of the step is computation, which grew with "
            f"the ranks: scaling is {rating(first)}"
        )
    best = max(cells, key=_compute_share)
    return [report(max(group, key=lambda e: (e.world_size, _compute_share(e)))) for group in by_model(good)] or (
        f"{best.name}: {format_percent(_compute_share(best))} of the step is computation, limit "
        f"{format_percent(MIN_COMPUTE)}; "
        f"{EXPOSED_COMM} {format_percent(best.share('exposed_comm'))}, limit {format_percent(MAX_OTHER)}"
    )


def _compute_share(cell: TimedCell) -> float:
    return cell.share("forward") + cell.share("backward_compute") + cell.share("optimizer")


def _compute_bound_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: computation takes nearly all the time (good news)."""
    ranks, device = read_in_full(job.summary), on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no rank has measurable events")
    parts = [p.budget.parts for p in ranks if p.budget is not None]
    share = median(p.compute_ns / p.window_ns if p.window_ns else 0.0 for p in parts)
    if not bound("compute-bound", share, "trace"):
        return f"computation takes {MOSTLY.of(share)}, limit {format_percent(MOSTLY)}"
    if len(ranks) > 1 and (cut := cut_short(job.summary)):
        return cut
    timed = [p for p in parts if p.window_ns]
    rest = {
        EXPOSED_COMM: median(p.exposed_comm_ns / p.window_ns for p in timed),
        TITLES["copies"]: median(p.exposed_memory_ns / p.window_ns for p in timed),
        "idle": median(p.idle_ns / p.window_ns for p in timed),
    }
    used = [p.utilisation for p in ranks if p.utilisation is not None]
    figures = [(u.mfu or u.hfu or 0.0, "MFU" if u.mfu else "HFU", u.dtype) for u in used if u.mfu or u.hfu]
    value, name, dtype = max(figures, key=lambda figure: figure[0], default=(0.0, "", ""))
    unknown = not figures and any(u.peak_flops_per_s is not None and u.model_flop is None for u in used)
    return finding(
        f"compute-bound: computation takes {MOSTLY.of(share)}" + (" (median rank)" if len(ranks) > 1 else ""),
        ", ".join(f"{part} {format_percent(of_window)}" for part, of_window in rest.items()),
        bool(figures) and f"{name} {format_percent(value)} of the {dtype} peak",
        severity="info",
        confidence="measured" if device else "measured from operators on CPUs",
        advice=[
            (
                "MFU shows how efficient the computation is: give the model's FLOP per step and rank",
                "--show utilisation,kernels --flop FLOP",
            )
            if unknown
            else ("list the kernels with most time", "--show utilisation,kernels")
            if device
            else ("list the operators with most time", "--show operators --sort host_self")
        ],
    )


RULE = Rule(
    symptom="computation takes nearly all the time (good news)",
    any_of=("cells", "traces"),
    look=check,
    look_at_job=_compute_bound_of_job,
    good_news=True,
    claims=("computation",),
    whole=True,
    kind="compute-bound",
    rests_on=("classes",),
    protocol=2,
    thresholds={"compute": MIN_COMPUTE, "other": MAX_OTHER, "in a trace": MOSTLY},
)
