"""Sharded units wait for copies around their collectives: into and out of buffers, or from and to host memory.

What
----
Copies that a unit launches: shards into the buffer of a gather, gathered parameters out of it, gradients into the buffer
of a reduction, and with parameters kept in host memory those between host and device. Fires when copies that no
computation hides take 5% of the steps, mean over ranks.

Why
---
FSDP2 shards each parameter by itself: every gather and reduction copies whole units again, on the stream that
computes. From host memory a unit arrives at the rate of the bus, a tenth of what NVLink gathers.

Known problems
--------------
Copies are recognised by FSDP2's ranges and operators and FSDP1's hooks; DeepSpeed marks none. CPU jobs are not judged.
Where the trace shows that a rank's shards do not fit beside what is reserved, offloading is needed, and its end not advised.

References
----------
PyTorch, torch.distributed.fsdp.fully_shard (MixedPrecisionPolicy, CPUOffloadPolicy, reshard_after_forward,
shard_placement_fn); torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: split_with_sizes_copy, chunk_cat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import Part
from stepscope.diagnose.unit_facts import WORTH, advice, matched, sizes, steps_ns, units_of
from stepscope.records.finding import Advice, Skipped
from stepscope.records.trace_units import ShardedUnits, UnitCopies
from stepscope.results.evidence import TraceEvidence

_ROOM = Threshold(value=0.9, unit="of the device's capacity", source="as for near-oom")
_HOST = ("parameters to the device", "gradients to the host")


def _look(job: TraceEvidence) -> Said:
    sharded = units_of(job.summary)
    if isinstance(sharded, Skipped):
        return sharded
    if not any(units.copies for units in sharded):
        return Skipped(reason="the trace shows no copies of units: no ranges or operators of FSDP mark them")
    steps = steps_ns(job.summary, matched(sharded))
    part = Part([min(1.0, sum(row.exposed_ns for row in units.copies) / steps) for units in sharded])
    if part.share < WORTH.value:
        return f"exposed copies of units take {part} of the step, limit {format_percent(WORTH.value)}"
    kinds: dict[str, list[UnitCopies]] = defaultdict(list)
    for row in (row for units in sharded for row in units.copies):
        kinds[row.kind].append(row)
    most = sorted(kinds, key=lambda kind: -sum(row.exposed_ns for row in kinds[kind]))
    told: tuple[Advice, ...]
    if most[0] in _HOST and (full := _no_room(sharded)):
        no_room = Advice(text="the device has no room for the shards: use larger micro-batches a copy")
        said, told = full, (no_room,)
    else:
        topic = "no offload" if most[0] in _HOST else "less copying"
        said, told = "measured", advice(job, sharded, topic)
    return part.finding(
        f"sharded units wait for copies: {part} of the step is {most[0]}"
        + (" and others" if len(most) > 1 else "")
        + " that no computation hides",
        [_said(kind, kinds[kind], len(sharded)) for kind in most],
        confidence=said,
        advice=told,
    )


def _no_room(sharded: Sequence[ShardedUnits]) -> str | None:
    """Why the parameters have to stay in host memory; None where the device has room, or nothing says so."""
    shards = sum(sizes(matched(sharded)).values()) / max(1, len(sharded))
    full = [u for u in sharded if u.reserved_bytes is not None and u.capacity_bytes]
    worst = max(full, key=lambda u: (u.reserved_bytes or 0) / (u.capacity_bytes or 1), default=None)
    if worst is None or not shards:
        return None
    used, capacity = worst.reserved_bytes or 0, worst.capacity_bytes or 1
    if used + shards <= _ROOM.value * capacity:
        return None
    return (
        f"measured; {format_bytes_binary(used)} of {format_bytes_binary(capacity)} are reserved, and a rank's parameters "
        f"take {format_bytes_binary(shards)}"
    )


def _said(kind: str, rows: list[UnitCopies], ranks: int) -> str:
    calls, exposed, busy = (sum(getattr(r, f) for r in rows) / ranks for f in ("calls", "exposed_ns", "busy_ns"))
    return f"{kind}: {calls:.0f} copies, {format_duration(exposed)} exposed of {format_duration(busy)} a rank"


RULE = Rule(
    name="fsdp-wait-on-copy",
    symptom="sharded units wait for copies around their collectives",
    needs=("traces",),
    look_at_job=_look,
    protocol=3,
    thresholds={"of the step": WORTH, "room": _ROOM},
)
