"""The last gradient bucket of the step accounts for most of the exposed communication.

What
----
Takes the buckets of a step in launch order and relates the last one's exposed time to that of all buckets and to the
step time. Over several ranks the minimum of each bucket counts, which is transfer without waiting. Fires if the last
bucket is at least half of the exposed time and 5% of the step.

Why
---
The backward pass is over when the last bucket is complete, so nothing can hide it. Its transfer is the minimum that a
step exposes, and it grows with its size.

Known problems
--------------
Needs at least two buckets per step. DDP never splits a parameter: a first layer (an embedding) larger than the cap is a
bucket of its own. With one rank's trace, the tail includes waiting for others.

References
----------
Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3; METRICS, Buckets. `bucket-size` names the best size.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.outcome import Statement
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import severity_of, steps_ns, trace_command, unread
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_buckets import BucketRow
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import TraceEvidence

_HALF = Threshold(
    value=0.5, unit="share of the buckets' exposed time", source="stepscope's choice, 2026-11: the majority"
)
_WORTH = Threshold(
    value=0.05, unit="share of the steps", source="stepscope's choice, 2026-11: a smaller cap takes one argument"
)

SMALL = Threshold(
    value=1 << 20, unit="bytes", source="8 A100 and 8 H100, nccl-tests logs: half of an all-reduce of 1 MiB is latency"
)

Step = dict[int, list[BucketRow]]
"""The buckets of one step by index, one row per rank."""


def _look(job: TraceEvidence) -> Statement:
    steps = _steps(job.summary)
    if not steps:
        return unread(job.summary, "no bucket was launched by gradient hooks (or --show left buckets out)")
    several = {number: step for number, step in steps.items() if len(step) > 1}
    if not several:
        return Skipped(reason="only one bucket per step")
    tail = sum(_exposed(step[max(step)]) for step in several.values())
    exposed = sum(_exposed(rows) for step in several.values() for rows in step.values())
    whole = steps_ns(job.summary, several)
    of_all, share = tail / exposed if exposed else 0.0, min(1.0, tail / whole) if whole else 0.0
    said = f"the last of {median(len(s) for s in several.values()):.0f} buckets"
    if of_all < _HALF.value or share < _WORTH.value:
        return (
            f"{said}: {format_percent(of_all)} of the exposed time, {format_percent(share)} of the step, limits "
            f"{format_percent(_HALF.value)} and {format_percent(_WORTH.value)}"
        )
    return _finding(job, list(several.values()), of_all=of_all, share=share, said=said)


def _finding(job: TraceEvidence, steps: list[Step], *, of_all: float, share: float, said: str) -> Finding:
    last = [step[max(step)] for step in steps]
    each_ns = median(_exposed(rows) for rows in last)
    sizes = [row.size_bytes for rows in last for row in rows if row.size_bytes]
    size = format_bytes_binary(max(sizes)) if sizes else "unknown size"
    members = next((row.members for rows in last for row in rows if row.members is not None), None)
    evidence = [f"{size}, {format_duration(each_ns)} of it exposed in the median of {counted(len(steps), 'step')}"]
    if len({p.facts.rank for p in job.summary.ranks}) == 1:
        evidence.append("only one rank's trace: this may include waiting for others")
    advice = [
        Advice(
            text=f"use a smaller last bucket: set the cap below {size}, DistributedDataParallel(bucket_cap_mb=...)",
            command=trace_command(job, "--show buckets"),
        ),
        *in_words_of("bucket size", used_in(job.summary) - {"ddp"}),
    ]
    if sizes and max(sizes) < SMALL.value:
        evidence.append("it is small: its time is latency, or it queues behind the buckets before it")
        advice = [
            Advice(
                text="a smaller cap does not help; use larger buckets, so that fewer of them queue, or accumulation",
                command=trace_command(job, "--show buckets,overlap"),
            )
        ]
    elif members is not None and len(members) == 1:
        evidence.append(f"the bucket is one gradient of shape {members[0]}: DDP does not split a parameter")
        advice = [
            Advice(
                text="a smaller cap does not help; use a sparse or sharded embedding, a bf16 hook, or accumulation",
                command=trace_command(job, "--show buckets"),
            )
        ]
    return Finding(
        severity=severity_of(share),
        title=f"{said} takes {format_percent(of_all)} of the exposed bucket time: {format_percent(share)} of the step",
        evidence=tuple(evidence),
        stake_fraction=share,
        confidence="measured; a smaller bucket still costs its latency",
        advice=tuple(advice),
    )


def _steps(summary: TraceSummary) -> dict[int | None, Step]:
    """The steps that have buckets, by number; None: none are marked."""
    steps: dict[int | None, Step] = defaultdict(lambda: defaultdict(list))
    for each in summary.ranks:
        for row in each.buckets:
            steps[row.step][row.index].append(row)
    return {number: dict(step) for number, step in steps.items()}


def _exposed(rows: list[BucketRow]) -> int:
    return min(row.exposed_ns for row in rows)


RULE = Rule(
    symptom="the last gradient bucket is most of the exposed communication",
    look_at_job=_look,
    protocol=3,
    thresholds={"of exposed": _HALF, "of the step": _WORTH, "small": SMALL},
)
