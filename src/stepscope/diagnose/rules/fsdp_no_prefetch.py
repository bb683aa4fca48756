"""Sharded parameters are gathered only when the computation before them has ended.

What
----
All-gathers of units (FSDP, ZeRO), the first of each pass left out. One is late when the computation before it covers next
to nothing of it. Fires when {late} are late and hiding them returns {of the step}. Of several ranks the
smallest exposed time counts, and at most the computation since the gather before: more cannot be hidden.

Why
---
A unit's gather needs nothing of the unit before it. Started one unit early it runs under that unit's computation.

Known problems
--------------
A prefetched unit needs memory for two units at once. A host that launches late keeps FSDP2's implicit prefetch from
working: then explicit prefetch helps, fewer launches help more. With one rank's trace, waiting for others counts as
transfer. CPU jobs are not judged:
there FSDP waits for every gather in the call that starts it.

References
----------
Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, VLDB 2023, section 3.3; PyTorch,
torch.distributed.fsdp.fully_shard, set_modules_to_forward_prefetch.
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.rule import WORTH as LAUNCHES
from stepscope.diagnose.rule import Limit, Rule, Statement, skipped
from stepscope.diagnose.trace_facts import idle_part, on_device
from stepscope.diagnose.unit_facts import WORTH, Call, Units, min_exposed_ns, on_units

_HALF = Limit(0.5, unit="of a pass's gathers", source="stepscope's choice, 2026-11: most of them")


@on_units("on CPUs FSDP waits for a gather in the call that starts it: prefetch hides none of it")
def _fsdp_no_prefetch_of_units(units: Units) -> Statement:
    """Look in the sharded units of a job for: sharded units are gathered after the computation that could hide it."""
    judged = [call for call in units.calls if all(c.early is not None for c in call)]
    if not judged:
        return skipped("one unit a pass: there is nothing to gather ahead")
    late = [call for call in judged if not any(c.early for c in call)]
    several = {phase: sum(call[0].phase == phase for call in judged) for phase in ("forward", "backward")}
    of_pass = {phase: [call for call in late if call[0].phase == phase] for phase in several if several[phase]}
    fires = {phase: calls for phase, calls in of_pass.items() if len(calls) >= _HALF * several[phase]}
    share = units.share((call for fire in fires.values() for call in fire), _hideable_ns)
    counts = ", ".join(f"{len(calls)} of {several[phase]} {phase}" for phase, calls in of_pass.items())
    if share < WORTH:
        return (
            f"late gathers: {counts}; hiding them returns {format_percent(share)} of the step, limit "
            f"{format_percent(WORTH)}"
        )
    launches = idle_part(on_device(units.job.summary), "host_late", "launch_latency")
    host = bool(launches.shares) and launches.share >= LAUNCHES
    cause = f"gathers that start after the computation before them has ended: {counts}"
    return units.finding(
        late,
        share,
        f"units are gathered without prefetch: {format_percent(share)} of the step is exposed all-gather that "
        "computation could hide",
        cause,
        [
            f"{phase}: {format_duration(sum(map(_hideable_ns, fire)))} could be hidden, of {format_duration(units.step_ns)}"
            for phase, fire in fires.items()
        ],
        host and f"the device idles {launches} because launches are late, those of gathers among them",
        cause=cause,
        limit="gathers may be late only because the host launches late"
        if host
        else "prefetch needs memory for two units at once",
        advice=[
            host and "first let the host launch in time (launch-bound): implicit prefetch then works",
            dict.fromkeys(advice for phase in fires for advice in units.advice(f"{phase} prefetch")),
        ],
    )


def _hideable_ns(call: Call) -> int:
    return min(min_exposed_ns(call), min(c.room_ns for c in call))


RULE = Rule(
    symptom="sharded units are gathered after the computation that could hide it",
    look_at_job=_fsdp_no_prefetch_of_units,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"late": _HALF, "of the step": WORTH},
)
