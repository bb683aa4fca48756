"""The root unit of a sharded model is large, and its communication is exposed.

What
----
FSDP2's unit without a name holds what no inner unit does. Fires when it has {of the bytes} and its own gathers
and reductions expose {of the step} (the smallest over ranks, so that waiting is left out). A model in one unit has all.

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
from stepscope.diagnose.rule import Limit, Rule, Statement, skipped
from stepscope.diagnose.unit_facts import WORTH, Units, on_units
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_rules import ROOT

_MOST = Limit(0.3, unit="of the gathered bytes", source="stepscope's choice, 2026-11: more than any block of a few")


@on_units()
def _fsdp_root_unit_of_units(units: Units) -> Statement:
    """Look in the sharded units of a job for: the root unit of a sharded model is too large."""
    sizes = units.sizes
    if ROOT not in sizes:
        return skipped("no root unit with a known size: the trace does not name the units")
    root_calls = [call for call in units.calls if call[0].unit == ROOT]
    of_all, share = sizes[ROOT] / sum(sizes.values()), units.share(root_calls)
    holds = f"the root unit holds {format_percent(of_all)} of the bytes"
    if of_all < _MOST or share < WORTH:
        return (
            f"{holds} and exposes {format_percent(share)} of the step, "
            f"limits {format_percent(_MOST)} and {format_percent(WORTH)}"
        )
    alone = len(sizes) == 1
    what = "the whole model is one sharded unit" if alone else holds
    return units.finding(
        root_calls,
        share,
        f"{what}: {format_percent(share)} of the step is its {EXPOSED_COMM}",
        f"{format_bytes_binary(sizes[ROOT])} in the root, {len(sizes) - 1} other units",
        cause=f"{what}: {format_bytes_binary(sizes[ROOT])}, beside {len(sizes) - 1} other units",
        limit="inner units still expose their first gather and their last reduction",
        advice=units.advice("wrap blocks" if alone else "split root"),
    )


RULE = Rule(
    symptom="the root unit of a sharded model is too large",
    look_at_job=_fsdp_root_unit_of_units,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"of the bytes": _MOST, "of the step": WORTH},
)
