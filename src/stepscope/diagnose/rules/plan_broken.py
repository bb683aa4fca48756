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
from stepscope.diagnose.rule import Rule, Statement, finding
from stepscope.diagnose.trace_facts import unread
from stepscope.results.evidence import TraceEvidence


def _plan_broken_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: a strategy communicates differently from its plan."""
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
        kept = decided[0]
        return (
            f"{kept.strategy}: {kept.planned_per_step} collectives a step as planned, on "
            f"{counted(len(decided), 'rank')}"
        )
    first = min(broken, key=lambda c: not c.certain)
    strategy, ranks = f"strategy {first.strategy!r}", counted(len(broken), "rank")
    differences = [f"rank {first.rank}: {text}" for text in first.differences[:4]]
    if first.certain:
        fix = "correct the strategy's comm_plan or its implementation; predictions from the plan are also wrong"
        return finding(
            f"{strategy} deviates from its communication plan on {ranks}",
            differences,
            severity="problem",
            confidence="certain: collectives counted by operation, bytes and phase",
            advice=[(fix, "--show conformance,collectives")],
            priority="wrong",
        )
    compare = "compare the calls with the plan before you use its predictions: they price the plan's pieces"
    return finding(
        f"{strategy} sends its plan's bytes in other pieces or earlier on {ranks}",
        differences,
        severity="info",
        confidence="likely: batching or prefetch explains every difference",
        advice=[(compare, "--show conformance,collectives")],
    )


RULE = Rule(
    symptom="a strategy communicates differently from its plan",
    look_at_job=_plan_broken_of_job,
    decided_by="a collective more or less than planned",
    protocol=4,
)
