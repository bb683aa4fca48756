"""Sharded units wait for copies around their collectives: into and out of buffers, or from and to host memory.

What
----
Copies that a unit launches: shards into the buffer of a gather, gathered parameters out of it, gradients into the buffer
of a reduction, and with parameters kept in host memory those between host and device. Fires when copies that no
computation hides take {of the step}, mean over ranks.

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

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import grouped
from stepscope.diagnose.rule import Rule, Statement, advise, skipped
from stepscope.diagnose.trace_facts import RankShares
from stepscope.diagnose.unit_facts import ROOM, WORTH, Units, on_units
from stepscope.records.trace_rules import UnitCopies

_HOST = ("parameters to the device", "gradients to the host")


@on_units("sharded on CPUs, where copies of units count as computation")
def _fsdp_wait_on_copy_of_units(units: Units) -> Statement:
    """Look in the sharded units of a job for: sharded units wait for copies around their collectives."""
    if not any(rank.copies for rank in units.ranks):
        return skipped("the trace shows no copies of units: no ranges or operators of FSDP mark them")
    part = RankShares(
        [min(1.0, sum(row.exposed_ns for row in rank.copies) / units.step_ns) for rank in units.ranks], limit=WORTH
    )
    if part.share < WORTH:
        return f"exposed copies of units take {part}, limit {format_percent(WORTH)}"
    kinds = grouped((row for rank in units.ranks for row in rank.copies), lambda row: row.kind)
    most = sorted(kinds, key=lambda kind: -sum(row.exposed_ns for row in kinds[kind]))
    full = _no_room(units) if most[0] in _HOST else None
    return part.finding(
        f"sharded units wait for copies: {part} is {most[0]}"
        + (" and others" if len(most) > 1 else "")
        + " that no computation hides",
        [_copies_text(kind, kinds[kind], len(units.ranks)) for kind in most],
        confidence=full or "measured",
        advice=units.advice("no offload" if most[0] in _HOST else "less copying")
        if full is None
        else [advise("the device has no room for the shards: use larger micro-batches a copy", key="no offload")],
    )


def _no_room(units: Units) -> str | None:
    """Why the parameters have to stay in host memory; None where the device has room, or nothing says so."""
    shards = sum(units.sizes.values()) / len(units.ranks)
    used, capacity = units.fullest or (0, 0)
    if not capacity or not shards or used + shards <= ROOM * capacity:
        return None
    return (
        f"measured; {format_bytes_binary(used)} of {format_bytes_binary(capacity)} are reserved, and a rank's parameters "
        f"take {format_bytes_binary(shards)}"
    )


def _copies_text(kind: str, rows: list[UnitCopies], ranks: int) -> str:
    calls, exposed, busy = (sum(getattr(r, f) for r in rows) / ranks for f in ("calls", "exposed_ns", "busy_ns"))
    return f"{kind}: {calls:.0f} copies, {format_duration(exposed)} exposed of {format_duration(busy)} a rank"


RULE = Rule(
    symptom="sharded units wait for copies around their collectives",
    look_at_job=_fsdp_wait_on_copy_of_units,
    claims=("copies",),
    kind="communication-bound",
    protocol=3,
    thresholds={"of the step": WORTH, "room": ROOM},
)
