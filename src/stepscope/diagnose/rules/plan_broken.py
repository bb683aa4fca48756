"""A traced step did not communicate as its strategy declares.

What
----
Compares the collectives of every whole step with the ``comm_plan`` that ``bench --profile`` writes into the trace: by
operation, bytes, phase of the step and group of ranks, as far as the trace shows it (gloo names no groups).

Why
---
Predictions price the plan. If the implementation deviates, the prediction is wrong, and a strategy that should overlap
but does not is slower than expected.

Known problems
--------------
Only traces of ``stepscope bench --profile`` carry a plan. Steps cut off by the capture do not count. The same bytes in other
pieces, and gathers called ahead, are named as such: batching and prefetch do that.

References
----------
docs/reference/trace.md (``--show conformance``); docs/howto/add-a-strategy.md.
"""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.diagnose.rule import Rule, Statement, inspect
from stepscope.diagnose.trace_facts import trace_command, unread
from stepscope.records.finding import Finding
from stepscope.records.trace_collectives import ConformanceCheck
from stepscope.results.evidence import TraceEvidence


def _judge_job(job: TraceEvidence) -> Statement:
    checks = [p.conformance for p in job.summary.ranks if p.conformance is not None]
    decided = [c for c in checks if c.holds is not None]
    if not decided:
        reason = (
            "no whole step was recorded"
            if checks
            else "the traces have no communication plan: they are not from stepscope bench --profile"
        )
        return unread(job.summary, reason)
    broken = [c for c in decided if not c.holds]
    if not broken:
        first = decided[0]
        return (
            f"{first.strategy}: {first.planned_per_step} collectives a step as planned, on "
            f"{counted(len(decided), 'rank')}"
        )
    first = min(broken, key=lambda c: not c.certain)
    return _report(job, first, counted(len(broken), "rank"))


def _report(job: TraceEvidence, first: ConformanceCheck, ranks: str) -> Finding:
    if first.certain:
        title = f"strategy {first.strategy!r} deviates from its communication plan on {ranks}"
        text = "correct the strategy's comm_plan or its implementation; predictions from the plan are also wrong"
    else:
        title = f"strategy {first.strategy!r} sends its plan's bytes in other pieces or earlier on {ranks}"
        text = "compare the calls with the plan before you use its predictions: they price the plan's pieces"
    return Finding(
        severity="problem" if first.certain else "info",
        title=title,
        evidence=tuple(f"rank {first.rank}: {text}" for text in first.differences[:4]),
        confidence="certain: collectives counted by operation, bytes and phase"
        if first.certain
        else "likely: batching or prefetch explains every difference",
        advice=(inspect(text, trace_command(job, "--show conformance,collectives")),),
        priority="wrong" if first.certain else "performance",
    )


RULE = Rule(
    symptom="a strategy communicates differently from its plan",
    look_at_job=_judge_job,
    decided_by="a collective more or less than planned",
    protocol=4,
)
