"""Parameters are gathered twice a step although the device has room to keep them.

What
----
All-gathers of the backward pass whose unit was gathered in the forward pass too. Fires when they expose 5% of the step
(the smallest over ranks, so that waiting is left out) and the device has room: what the allocator reserved at most,
and all units gathered at once, together stay below 90% of the device's memory.

Why
---
Resharding after the forward pass saves memory and costs the second gather. Where memory is free it is only a cost.

Known problems
--------------
Needs memory in the trace (profile_memory=True) and the device's capacity. The sum of all units is
more than what is needed: some are gathered at the peak already. Other processes' memory is not seen.

References
----------
Rajbhandari et al., ZeRO, SC 2020, section 7 (stage 3 sends 1.5 times the bytes of stage 2); PyTorch,
torch.distributed.fsdp.fully_shard, reshard_after_forward.
"""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import severity_of
from stepscope.diagnose.unit_facts import (
    WORTH,
    advice,
    confidence,
    exposed_ns,
    matched,
    sizes,
    steps_ns,
    units_of,
    where,
)
from stepscope.records.finding import Finding, Skipped
from stepscope.results.evidence import TraceEvidence

_ROOM = Threshold(value=0.9, unit="of the device's capacity", source="as for near-oom")


def _look(job: TraceEvidence) -> Said:
    sharded = units_of(job.summary)
    if isinstance(sharded, Skipped):
        return sharded
    calls = matched(sharded)
    gathers = [each for each in calls if each[0].op == "all_gather" and each[0].unit is not None]
    forward = {(each[0].step, each[0].unit) for each in gathers if each[0].phase == "forward"}
    again = [e for e in gathers if e[0].phase == "backward" and (e[0].step, e[0].unit) in forward]
    if not again:
        return "no unit is gathered twice a step"
    share = min(1.0, sum(map(exposed_ns, again)) / steps_ns(job.summary, calls))
    units = {each[0].unit for each in again}
    if share < WORTH.value:
        return (
            f"{len(units)} units are gathered twice; the second gathers expose {format_percent(share)} of the step, limit "
            f"{format_percent(WORTH.value)}"
        )
    known = sizes(calls)
    if not units <= known.keys() or any(u.reserved_bytes is None or u.capacity_bytes is None for u in sharded):
        return Skipped(
            reason="whether the device has room for gathered parameters is not recorded: profile with memory"
        )
    kept = sum(known[u] for u in units if u is not None)
    used, capacity = max(
        ((u.reserved_bytes or 0, u.capacity_bytes or 1) for u in sharded), key=lambda each: each[0] / each[1]
    )
    if used + kept > _ROOM.value * capacity:
        return f"no room to keep {format_bytes_binary(kept)} gathered beside {format_bytes_binary(used)}"
    rank, at_ns = where(sharded, again)
    return Finding(
        severity=severity_of(share),
        title=f"{len(units)} units are gathered twice a step: {format_percent(share)} of the step is exposed second gathers",
        evidence=(
            f"kept gathered they take {format_bytes_binary(kept)} at most; the allocator reserves "
            f"{format_bytes_binary(used)} of {format_bytes_binary(capacity)}",
        ),
        stake_fraction=share,
        ranks=(rank,),
        at_ns=at_ns,
        confidence=confidence(sharded, "prefetch may hide part of it without more memory"),
        advice=advice(job, sharded, "keep gathered"),
    )


RULE = Rule(
    name="fsdp-regathers",
    symptom="sharded units are gathered twice although memory has room",
    needs=("traces",),
    look_at_job=_look,
    protocol=3,
    thresholds={"of the step": WORTH, "room": _ROOM},
)
