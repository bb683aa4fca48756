"""The profiler makes steps so much longer that shares of its trace are not those of the job.

What
----
Median step of a trace (slowest rank) against the median of the same job's steps without the profiler: timed steps of
`stepscope profile` and `run`, and of the cells of `bench`. Fires where {share} or more is the
profiler's. Findings on the trace that are no larger than that are called doubtful; what the verdict of `profile` measures
on timed steps is not.

Why
---
The profiler works on the host, for each operator and each launch. It makes Python, launches and gaps look longer, most of
all where operators are short, and everything else look smaller.

Known problems
--------------
A trace whose job was timed nowhere else cannot be judged. Steps of different work (sequence lengths) differ without a
profiler.

References
----------
PyTorch documentation, torch.profiler: with_stack, record_shapes and profile_memory add overhead.
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import GRAVE, Limit, Rule, Statement, finding, skipped
from stepscope.records.finding import Doubt
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence

MOST = Limit(
    GRAVE,
    unit="of the traced step",
    source="stepscope's choice, 2026-11: as much as makes a finding on a trace a problem",
)


def check(evidence: Evidence) -> Statement:
    """Look for: the profiler lengthens the steps that findings rest on."""
    compared = [(job, *pair) for job in evidence.traces if (pair := _traced_and_timed_ns(evidence, job)) is not None]
    if not compared:
        return skipped("no steps without the profiler to compare a trace with", "stepscope run -- COMMAND")
    shares = [(1 - timed / traced, job, traced, timed) for job, traced, timed in compared]
    lengthened = [share for share in shares if share[0] >= MOST]
    worst, job, traced, timed = max(shares, key=lambda share: share[0])
    if not lengthened:
        return (
            f"{job.name}: {format_duration(traced)} a traced step, {format_duration(timed)} without the profiler; limit: "
            f"{format_percent(MOST)} of the traced step"
        )
    profiled = evidence.profiled_of(job)
    more = () if profiled is None or profiled.record.first is None else profiled.record.first.collect
    options = " and ".join(f"--{name}" for name in more)
    return finding(
        f"the profiler makes a step {traced / timed:.1f} times as long: {format_duration(traced)} against "
        f"{format_duration(timed)}",
        f"{format_percent(worst)} of the traced step is the profiler's, which works on the host: Python, launches and "
        "gaps look longer than they are",
        len(lengthened) > 1 and f"so it is in {counted(len(lengthened) - 1, 'more traced job')}",
        confidence="measured: medians of traced and of timed steps",
        advice=[
            "trust sizes of timed steps; of the trace, the order of things and what the devices do",
            bool(more) and (f"profile without {options}, then compare", "stepscope profile -- COMMAND"),
        ],
        of=job.name,
        job=job.name,
        casts_doubt={
            trace.name: Doubt(why=f"{format_percent(share)} of the traced step is the profiler's", reach=share)
            for share, trace, *_ in lengthened
        },
    )


def _traced_and_timed_ns(evidence: Evidence, job: TraceEvidence) -> tuple[float, float] | None:
    """Medians of a traced and of a timed step, ns; None where either is unknown."""
    profiled = evidence.profiled_of(job)
    if profiled is not None and profiled.steps is not None and profiled.profiled_step_ns:
        from stepscope.results.diary import step_interval

        timed = step_interval(profiled.steps).value
        return (profiled.profiled_step_ns, timed) if timed else None
    cell = next((c for c in evidence.cells if job.is_of(c)), None)
    traced = traced_step_ns(job.summary)
    if cell is None or cell.run.step_ns is None or cell.run.step_ns.value <= 0 or not traced:
        return None
    return traced, cell.run.step_ns.value


def traced_step_ns(summary: TraceSummary) -> float | None:
    """The median step of the slowest rank."""
    return max((median(s.parts.window_ns for s in p.steps) for p in summary.ranks if p.steps), default=None)


RULE = Rule(
    symptom="the profiler lengthens the steps that findings rest on",
    needs=("traces",),
    look=check,
    protocol=1,
    thresholds={"share": MOST},
)
