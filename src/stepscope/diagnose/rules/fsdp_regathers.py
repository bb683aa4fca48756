"""Parameters are gathered twice a step although the device has room to keep them.

What
----
All-gathers of the backward pass whose unit was gathered in the forward pass too. Fires when they expose {of the step}
(the smallest over ranks, so that waiting is left out) and the device has room: what the allocator reserved at most,
and all units gathered at once, together stay below {room}.

Why
---
Resharding after the forward pass saves memory and costs the second gather. Where memory is free it is only a cost.

Known problems
--------------
On devices needs memory in the trace (profile_memory=True) and the device's capacity; on CPUs the room is unknown. The
sum of all units is more than what is needed: some are gathered at the peak already. Other processes' memory is not seen.

References
----------
Rajbhandari et al., ZeRO, SC 2020, section 7 (stage 3 sends 1.5 times the bytes of stage 2); PyTorch,
torch.distributed.fsdp.fully_shard, reshard_after_forward.
"""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.diagnose.rule import Rule, Statement, skipped
from stepscope.diagnose.unit_facts import ROOM, WORTH, Units, on_units


@on_units()
def _fsdp_regathers_of_units(units: Units) -> Statement:
    """Look in the sharded units of a job for: sharded units are gathered twice although memory has room."""
    gathers = [call for call in units.calls if call[0].op == "all_gather" and call[0].unit is not None]
    forward = {(gather[0].step, gather[0].unit) for gather in gathers if gather[0].phase == "forward"}
    again = [e for e in gathers if e[0].phase == "backward" and (e[0].step, e[0].unit) in forward]
    if not again:
        return "no unit is gathered twice a step"
    share = units.share(again)
    names = {gather[0].unit for gather in again}
    if share < WORTH:
        return (
            f"{len(names)} units are gathered twice; the second gathers expose {format_percent(share)} of the step, limit "
            f"{format_percent(WORTH)}"
        )
    kept = sum(size for name, size in units.sizes.items() if name in names)
    all_sized, used, capacity = names <= units.sizes.keys(), *(units.fullest or (0, 0))
    if not (all_sized and units.on_cpus):
        if not all_sized or any(rank.reserved_bytes is None or rank.capacity_bytes is None for rank in units.ranks):
            return skipped("whether the device has room for gathered parameters is not recorded: profile with memory")
        if used + kept > ROOM * capacity:
            return f"no room to keep {format_bytes_binary(kept)} gathered beside {format_bytes_binary(used)}"
    cause = f"{len(names)} units are gathered in the forward and again in the backward pass"
    room = (
        "of a rank's host memory at most"
        if units.on_cpus
        else f"at most; the allocator reserves {format_bytes_binary(used)} of {format_bytes_binary(capacity)}"
    )
    return units.finding(
        again,
        share,
        f"sharded units are gathered twice: the second gathers take {format_percent(share)} of the step",
        not units.on_cpus and cause,
        f"kept gathered they take {format_bytes_binary(kept)} {room}",
        cause=cause,
        limit="whether host memory has room is not recorded"
        if units.on_cpus
        else "prefetch may hide part of it without more memory",
        advice=units.advice("keep gathered"),
    )


RULE = Rule(
    symptom="sharded units are gathered twice although memory has room",
    look_at_job=_fsdp_regathers_of_units,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"of the step": WORTH, "room": ROOM},
)
