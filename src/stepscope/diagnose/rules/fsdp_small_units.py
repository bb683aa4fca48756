"""Sharded units are so small that their collectives are mostly latency.

What
----
Units whose gathered size is below 8 MiB. Fires when at least four units and half of all are, and the exposed time of
their gathers and reductions is 5% of the step (the smallest over ranks, so that waiting is left out).

Why
---
A collective has a fixed cost of tens of microseconds. On 8 A100s over NVLink a gather of 8 MiB reaches 27% of the
bandwidth of a large one, one of 1 MiB 6%. Two units in one move the same bytes with one fixed cost.

Known problems
--------------
Between hosts the size from which bandwidth is reached is larger: units above the limit may be small there. Larger units
hold more memory while they are gathered. CPU jobs are not judged.

References
----------
Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.1 (larger units use the network better); nccl-tests all_gather_perf on
8 A100s: 59.4 GB/s at 8 MiB, 12.6 at 1 MiB, 223 at 8 GiB.
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.diagnose.outcome import Statement
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.unit_facts import WORTH, Units, on_units
from stepscope.records.finding import Skipped

_SMALL = Threshold(
    value=8 << 20, unit="bytes gathered", source="nccl-tests on 8 A100s: 27% of the bandwidth of large sizes"
)
_LEAST = Threshold(value=4, unit="units", source="stepscope's choice, 2026-11: fewer have little to merge")
_HALF = Threshold(value=0.5, unit="of the units", source="stepscope's choice, 2026-11: most of them")


@on_units
def _look(units: Units) -> Statement:
    if not units.sizes:
        return Skipped(reason="the sizes of the units are not recorded")
    small = {unit for unit, size in units.sizes.items() if size < _SMALL.value}
    mine = [each for each in units.calls if each[0].unit in small]
    share = units.share(mine)
    said = f"{len(small)} of {len(units.sizes)} units gather less than {format_bytes_binary(_SMALL.value)}"
    if len(small) < max(_LEAST.value, _HALF.value * len(units.sizes)) or share < WORTH.value:
        limit = format_percent(WORTH.value)
        return f"{said}; {format_percent(share)} of the step is their exposed communication, limit {limit}"
    return units.finding(
        mine,
        share,
        f"sharded units are small: {format_percent(share)} of the step is exposed communication of {len(small)} units",
        (
            f"{said}, {format_bytes_binary(median(units.sizes[u] for u in small))} in the median",
            f"{len(mine)} collectives of these units in {len({each[0].step for each in units.calls})} steps",
        ),
        limit="larger units still move the same bytes",
        advice=units.advice("larger units"),
    )


RULE = Rule(
    symptom="sharded units are too small for the network",
    look_at_job=_look,
    protocol=3,
    thresholds={"small": _SMALL, "least": _LEAST, "share": _HALF, "of the step": WORTH},
)
