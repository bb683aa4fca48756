"""Gradients are reduced in every micro-step although the optimizer steps once.

What
----
Counts the backward passes of a step that reduce the same gradients: calls of DDP's forward a step, or reduced elements
against the optimizer's parameters, or reductions whose sizes repeat in the same order with room for a forward pass
between them; of sharded units, reductions of one unit a step. With k > 1 of them, k - 1 of k reductions are not needed.
The stake is that part of what the reductions expose (the smallest over ranks, so that waiting is left out). Fires from
{of the step} on.

Why
---
The optimizer uses the sum of all micro-steps: one reduction of the sum is enough. Each earlier one costs as much.

Known problems
--------------
Sharded units that reduce once keep whole gradients on every rank until then, which takes memory. Buckets of one size
without recorded parameters or annotations may be of one pass or of several, and are taken for one.

References
----------
Li et al., PyTorch Distributed, VLDB 2020, section 3.2.4 (no_sync); PyTorch, torch.distributed.fsdp.fully_shard,
set_requires_gradient_sync.
"""

from __future__ import annotations

from collections import defaultdict

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.frameworks import OPTIONS, option, used_in
from stepscope.diagnose.job_facts import micro_steps
from stepscope.diagnose.rule import Rule, Statement, advise, finding
from stepscope.diagnose.trace_facts import exposed_transfer, steps_ns, unread
from stepscope.diagnose.unit_facts import WORTH
from stepscope.results.evidence import TraceEvidence


def _gradient_sync_each_micro_step_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: gradients are reduced in every micro-step."""
    ranks = job.summary.ranks
    passes = micro_steps(job.summary)
    if passes is None:
        return unread(job.summary, "no step shows reductions by gradient hooks, or of sharded units")
    if passes < 2:
        return "gradients are reduced in one backward pass a step"
    of_call: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in ranks:
        for row in rank.buckets:
            if row.step is not None:
                of_call[row.step, row.index].append(row.exposed_ns)
        for call in () if rank.buckets or rank.units is None else rank.units.calls:
            if call.op == "reduce_scatter" and call.step is not None:
                of_call[call.step, call.place].append(call.exposed_ns)
    exposed, steps = sum(map(min, of_call.values())), {step for step, _ in of_call}
    share = min(exposed / (steps_ns(job.summary, steps) or 1.0), 1.0)
    if (transfer := exposed_transfer(job.summary)) is not None:
        share = min(share, transfer)
    stake = share * (passes - 1) / passes
    sentence = f"{passes} backward passes a step reduce the same gradients"
    if stake < WORTH:
        limit = format_percent(WORTH)
        return f"{sentence}; {passes - 1} of {passes} cost {format_percent(stake)} of the step, limit {limit}"
    used = used_in(job.summary) | {p.units.wrapper for p in ranks if p.units is not None}
    return finding(
        f"gradients are reduced in each of {passes} micro-steps: once is enough, and saves up to "
        f"{format_percent(stake)} of the step",
        f"{sentence}: {passes - 1} of {passes} are not needed",
        f"{format_duration(exposed / max(len(steps), 1))} of reductions are exposed a step "
        f"({counted(len(steps), 'step')} recorded)",
        cause=f"{sentence}: one would do",
        stake=stake,
        ranks=tuple(p.facts.rank for p in ranks[:1]),
        confidence="measured; reductions of the same gradients, counted",
        advice=[
            advise(
                f"reduce once a step: {option('accumulate', used, plain=OPTIONS['accumulate']['ddp'])}",
                "--show buckets,overlap",
                key="accumulate",
            )
        ],
    )


RULE = Rule(
    symptom="gradients are reduced in every micro-step",
    look_at_job=_gradient_sync_each_micro_step_of_job,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"of the step": WORTH},
)
