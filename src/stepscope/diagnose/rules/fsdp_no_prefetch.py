"""Sharded parameters are gathered only when the computation before them has ended.

What
----
All-gathers of units (FSDP, ZeRO), the first of each pass left out. One is late when the computation before it covers less
than 5% of it. Fires when half of a pass's gathers are late and hiding them returns 5% of the step. Of several ranks the
smallest exposed time counts, and at most the computation since the gather before: more cannot be hidden.

Why
---
A unit's gather needs nothing of the unit before it. Started one unit early it runs under that unit's computation.

Known problems
--------------
A prefetched unit needs memory for two units at once. A host that launches late keeps FSDP2's implicit prefetch from
working: then explicit prefetch helps, fewer launches help more. With one rank's trace, waiting for others counts as
transfer. CPU jobs are not judged.

References
----------
Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, VLDB 2023, section 3.3; PyTorch,
torch.distributed.fsdp.fully_shard, set_modules_to_forward_prefetch.
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import WORTH as LAUNCHES
from stepscope.diagnose.trace_facts import Part, idle_share, on_device, severity_of
from stepscope.diagnose.unit_facts import WORTH, advice, confidence, exposed_ns, matched, steps_ns, units_of, where
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_units import UnitCall
from stepscope.results.evidence import TraceEvidence

_HALF = Threshold(value=0.5, unit="of a pass's gathers", source="stepscope's choice, 2026-11: most of them")


def _look(job: TraceEvidence) -> Said:
    sharded = units_of(job.summary)
    if isinstance(sharded, Skipped):
        return sharded
    calls = matched(sharded)
    judged = [mine for mine in calls if all(c.early is not None for c in mine)]
    if not judged:
        return Skipped(reason="one unit a pass: there is nothing to gather ahead")
    whole = steps_ns(job.summary, calls)
    late_in: dict[str, tuple[int, int, int]] = {}
    for phase in ("forward", "backward"):
        mine = [each for each in judged if each[0].phase == phase]
        late = [each for each in mine if not any(c.early for c in each)]
        late_in[phase] = len(late), len(mine), sum(map(_hideable, late))
    fires = {p: f for p, f in late_in.items() if f[1] and f[0] >= _HALF.value * f[1]}
    share = min(1.0, sum(ns for _, _, ns in fires.values()) / whole)
    said = ", ".join(f"{late} of {all_} {phase}" for phase, (late, all_, _) in late_in.items() if all_)
    if share < WORTH.value:
        return (
            f"late gathers: {said}; hiding them returns {format_percent(share)} of the step, limit "
            f"{format_percent(WORTH.value)}"
        )
    topics = [f"{phase} prefetch" for phase in fires]
    rank, at_ns = where(sharded, [m for m in judged if not any(c.early for c in m)])
    late_host = Part([idle_share(p, "host_late", "launch_latency") for p in on_device(job.summary)] or [0.0])
    host = late_host.share >= LAUNCHES
    return Finding(
        severity=severity_of(share),
        title=f"units are gathered without prefetch: {format_percent(share)} of the step is exposed all-gather that "
        "computation could hide",
        evidence=(
            f"gathers that start after the computation before them has ended: {said}",
            *(
                f"{phase}: {format_duration(ns)} could be hidden, of {format_duration(whole)}"
                for phase, (_, _, ns) in fires.items()
            ),
            *(
                (f"the device idles {late_host} because launches are late, those of gathers among them",)
                if host
                else ()
            ),
        ),
        stake_fraction=share,
        ranks=(rank,),
        at_ns=at_ns,
        confidence=confidence(
            sharded,
            "gathers may be late only because the host launches late"
            if host
            else "prefetch needs memory for two units at once",
        ),
        advice=(
            *(
                (Advice(text="first let the host launch in time (launch-bound): implicit prefetch then works"),)
                if host
                else ()
            ),
            *dict.fromkeys(each for topic in topics for each in advice(job, sharded, topic)),
        ),
    )


_LAUNCH_FIRST = Advice(text="first let the host launch in time (launch-bound): implicit prefetch then works")


def _hideable(mine: list[UnitCall]) -> int:
    return min(exposed_ns(mine), min(c.room_ns for c in mine))


RULE = Rule(
    name="fsdp-no-prefetch",
    symptom="sharded units are gathered after the computation that could hide it",
    needs=("traces",),
    look_at_job=_look,
    protocol=3,
    thresholds={"late": _HALF, "of the step": WORTH},
)
