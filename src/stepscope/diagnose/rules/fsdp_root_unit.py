"""The root unit of a sharded model is large, and its communication is exposed.

What
----
FSDP2's unit without a name holds what no inner unit does. Fires when it has 30% of all gathered bytes and its own gathers
and reductions expose 5% of the step (the smallest over ranks, so that waiting is left out). A model in one unit has all.

Why
---
The root's gather opens the step and its reduction ends it: no computation is left to hide either, and it stays gathered
from the forward to the end of the backward pass.

Known problems
--------------
Only units that the trace names are judged. Tied embedding and head have to stay in one unit.

References
----------
PyTorch, torch.distributed.fsdp.fully_shard (bottom-up, one call a block, the root last).
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
from stepscope.records.trace_units import ROOT
from stepscope.results.evidence import TraceEvidence

_MOST = Threshold(
    value=0.3, unit="of the gathered bytes", source="stepscope's choice, 2026-11: more than any block of a few"
)


def _look(job: TraceEvidence) -> Said:
    sharded = units_of(job.summary)
    if isinstance(sharded, Skipped):
        return sharded
    calls = matched(sharded)
    known = sizes(calls)
    if ROOT not in known:
        return Skipped(reason="no root unit with a known size: the trace does not name the units")
    of_all = known[ROOT] / sum(known.values())
    share = min(1.0, sum(exposed_ns(e) for e in calls if e[0].unit == ROOT) / steps_ns(job.summary, calls))
    if of_all < _MOST.value or share < WORTH.value:
        return (
            f"the root unit holds {format_percent(of_all)} of the bytes and exposes {format_percent(share)} of the step, "
            f"limits {format_percent(_MOST.value)} and {format_percent(WORTH.value)}"
        )
    alone = len(known) == 1
    rank, at_ns = where(sharded, [e for e in calls if e[0].unit == ROOT])
    return Finding(
        severity=severity_of(share),
        title=(
            "the whole model is one sharded unit"
            if alone
            else f"the root unit holds {format_percent(of_all)} of the bytes"
        )
        + f": {format_percent(share)} of the step is its exposed communication",
        evidence=(f"{format_bytes_binary(known[ROOT])} in the root, {len(known) - 1} other units",),
        stake_fraction=share,
        ranks=(rank,),
        at_ns=at_ns,
        confidence=confidence(sharded, "inner units still expose their first gather and their last reduction"),
        advice=advice(job, sharded, "wrap blocks" if alone else "split root"),
    )


RULE = Rule(
    name="fsdp-root-unit",
    symptom="the root unit of a sharded model is too large",
    needs=("traces",),
    look_at_job=_look,
    protocol=3,
    thresholds={"of the bytes": _MOST, "of the step": WORTH},
)
