"""The last gradient bucket of the step accounts for most of the exposed communication.

What
----
Takes the buckets of a step in launch order and relates the last one's exposed time to that of all buckets. Over several
ranks the minimum of each bucket counts, which is transfer without waiting. What a smaller last bucket returns is its
exposed time less the transfer of the smallest bucket worth sending (by the latency and bandwidth of this job's own
buckets), and at most the time in which no bucket before it was under way although gradients were ready. Fires if the last
bucket is at least {of exposed} and that returns {of the step}.

Why
---
The backward pass is over when the last bucket is complete, so nothing can hide it. Its transfer is the minimum that a
step exposes, and it grows with its size.

Known problems
--------------
Needs at least two buckets per step. Of buckets of one size latency is unknown: all of their time counts as bandwidth. DDP
never splits a parameter: a first layer (an embedding) larger than the cap is a bucket of its own. With one rank's trace,
the tail includes waiting for others.

References
----------
Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3; metrics.md, Collectives. `bucket-size` names the best size.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, finding, skipped
from stepscope.diagnose.trace_facts import steps_ns, unread
from stepscope.diagnose.unit_facts import fitted
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_collectives import BucketRow
from stepscope.results.evidence import TraceEvidence

_HALF = Limit(0.5, unit="share of the buckets' exposed time", source="stepscope's choice, 2026-11: the majority")
_WORTH = Limit(0.05, unit="share of the step", source="stepscope's choice, 2026-11: a smaller cap takes one argument")

Step = dict[int, list[BucketRow]]
"""The buckets of one step by index, one row per rank."""


def _judge_job(job: TraceEvidence) -> Statement:
    by_step: dict[int | None, Step] = defaultdict(lambda: defaultdict(list))
    for rank in job.summary.ranks:
        for row in rank.buckets:
            by_step[row.step][row.index].append(row)
    if not by_step:
        return unread(job.summary, "no bucket was launched by gradient hooks (or --show left buckets out)")
    several = {number: step for number, step in by_step.items() if len(step) > 1}
    if not several:
        return skipped("only one bucket per step")
    steps = list(several.values())
    last = [step[max(step)] for step in steps]
    exposed = sum(_least_exposed_ns(rows) for step in steps for rows in step.values())
    whole = steps_ns(job.summary, several)
    of_all = sum(map(_least_exposed_ns, last)) / exposed if exposed else 0.0
    share = min(1.0, _returned_ns(steps) / whole) if whole else 0.0
    last_bucket = f"the last of {median(map(len, steps)):.0f} buckets"
    if of_all < _HALF or share < _WORTH:
        return (
            f"{last_bucket}: {format_percent(of_all)} of the exposed time, a smaller one returns {format_percent(share)} of "
            f"the step, limits "
            f"{format_percent(_HALF)} and {format_percent(_WORTH)}"
        )
    sizes = [row.size_bytes for rows in last for row in rows if row.size_bytes]
    size = format_bytes_binary(max(sizes)) if sizes else "unknown size"
    members = next((row.members for rows in last for row in rows if row.members is not None), None)
    one = members is not None and len(members) == 1
    return finding(
        f"the last gradient bucket is too large: {_WORTH.of(share)} waits for it",
        f"{last_bucket} takes {format_percent(of_all)} of the exposed time of all buckets",
        f"it holds {size}; {format_duration(median(map(_least_exposed_ns, last)))} of its transfer are exposed, median of "
        f"{counted(len(steps), 'step')}",
        len({p.facts.rank for p in job.summary.ranks}) == 1
        and "only one rank's trace: this may include waiting for others",
        one and f"the bucket is one gradient of shape {(members or ())[0]}: DDP does not split a parameter",
        cause=f"{last_bucket} holds {size} and begins last",
        stake=share,
        confidence="likely: what a smaller bucket leaves is estimated from this job's own buckets",
        advice=[
            advise(
                "a smaller cap does not help; use a sparse or sharded embedding, or accumulation",
                "--show buckets",
                key="accumulate",
            )
        ]
        if one
        else [
            advise(f"use a smaller last bucket: less than {size}", "--show buckets", key="bucket size"),
            in_words_of("bucket size", used_in(job.summary), plain="DistributedDataParallel(bucket_cap_mb=...)"),
        ],
    )


def _returned_ns(steps: list[Step]) -> float:
    """Return what a last bucket of the smallest useful size saves over these steps, ns."""
    rows = [rows for step in steps for rows in step.values()]
    cost = fitted((row[0].size_bytes or 0, min(r.end_ns - r.start_ns for r in row)) for row in rows)
    returned = 0.0
    for step in steps:
        *_, before, last = sorted(step)
        exposed, size = _least_exposed_ns(step[last]), max(row.size_bytes or 0 for row in step[last])
        smallest = 0.0 if cost is None or not size else cost.of(min(size, cost.useful_bytes))
        returned += max(0.0, min(exposed - smallest, _idle_before(step[before], step[last])))
    return returned


def _idle_before(before: list[BucketRow], last: list[BucketRow]) -> float:
    """Return how long no bucket before the last was under way while its gradients became ready, least of the ranks."""
    of_rank = {row.rank: row for row in before}
    idle = (
        row.start_ns - max(earlier.end_ns, earlier.ready_ns or earlier.launch_ns)
        for row in last
        if (earlier := of_rank.get(row.rank)) is not None
    )
    return min(idle, default=0.0)


def _least_exposed_ns(rows: list[BucketRow]) -> int:
    return min(row.exposed_ns for row in rows)


RULE = Rule(
    symptom=f"the last gradient bucket is most of the {EXPOSED_COMM}",
    look_at_job=_judge_job,
    claims=("communication",),
    kind="communication-bound",
    protocol=3,
    rests_on=("overlap",),
    thresholds={"of exposed": _HALF, "of the step": _WORTH},
)
