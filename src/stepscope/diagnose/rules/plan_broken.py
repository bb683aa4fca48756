"""A traced step did not communicate as its strategy declared.

What
----
The collectives of every whole step, by operation and bytes, against the ``comm_plan`` that ``bench --profile`` writes
into the trace; and whether they were launched inside the backward pass where the plan says so.

Why
---
Predictions price the plan. A strategy whose implementation differs is predicted wrong, and one that should overlap
and does not is slower than its name.

Known problems
--------------
Only traces of ``stepscope bench --profile`` carry a plan. A step cut off by the capture is left out.

References
----------
docs/reference/trace.md (``--show conformance``); FORMATS, Strategy protocol.
"""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.diagnose.rule import Outcome, Rule
from stepscope.diagnose.trace_facts import each_job, trace_command, unread
from stepscope.records.finding import Advice, Finding, Quiet
from stepscope.results.evidence import Evidence, TraceEvidence

_NAME = "plan-broken"


def _look(job: TraceEvidence) -> Outcome:
    checks = [p.conformance for p in job.summary.ranks if p.conformance is not None]
    decided = [c for c in checks if c.holds is not None]
    if not decided:
        reason = (
            "no whole step was recorded" if checks else "the traces carry no plan: not of stepscope bench --profile"
        )
        return unread(_NAME, job.summary, reason)
    broken = [c for c in decided if not c.holds]
    if not broken:
        first = decided[0]
        return Quiet(
            rule=_NAME,
            looked_at=f"{first.strategy}: {first.planned_per_step} collectives a step as planned, on "
            f"{counted(len(decided), 'rank')}",
        )
    first = broken[0]
    return (
        Finding(
            rule=_NAME,
            severity="problem",
            title=f"strategy {first.strategy!r} did not communicate as its plan says, on {counted(len(broken), 'rank')}",
            evidence=tuple(f"rank {first.rank}: {text}" for text in first.differences[:4]),
            stake_fraction=None,
            confidence="certain: collectives counted by operation and bytes",
            advice=(
                Advice(
                    text="the strategy's comm_plan or its implementation is wrong; predictions from the plan are, too",
                    command=trace_command(job, "--show conformance,collectives"),
                ),
            ),
        ),
    )


def _check(evidence: Evidence) -> Outcome:
    return each_job(evidence, _look)


RULE = Rule(
    name=_NAME,
    symptom="a strategy that communicates otherwise than its plan says",
    needs=("traces",),
    check=_check,
    protocol=4,
)
