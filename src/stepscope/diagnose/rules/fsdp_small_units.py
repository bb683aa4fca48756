"""Sharded units are so small that their collectives are mostly latency.

What
----
Units whose gathered size is below that of which latency takes half of the time, by this job's own gathers and reductions
(on devices at least 8 MiB, between 64 KiB and 64 MiB). Fires when at least {least} and {share} are, and merging
them returns {of the step}: the latency of the calls that go, or what these units expose (the smallest over ranks, so that
waiting is left out) less what the calls that stay take by the fitted cost, whichever is more; on CPUs also the wrapper's
own time around the calls that go, which is part of the step there.

Why
---
A collective has a fixed cost of tens of microseconds. On 8 A100s over NVLink a gather of 8 MiB reaches 27% of the
bandwidth of a large one, one of 1 MiB 6%. Two units in one move the same bytes with one fixed cost.

Known problems
--------------
Between hosts the size from which bandwidth is reached is larger: units above the limit may be small there. Larger units
hold more memory while they are gathered. Of units of one size latency is unknown: then the limit is 8 MiB (on
CPUs 256 KiB), and what they expose is at stake.

References
----------
Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.1 (larger units use the network better); nccl-tests all_gather_perf on
8 A100s: 59.4 GB/s at 8 MiB, 12.6 at 1 MiB, 223 at 8 GiB.
"""

from __future__ import annotations

import math
from statistics import median

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import grouped
from stepscope.diagnose.rule import Limit, Rule, Statement, skipped
from stepscope.diagnose.unit_facts import WORTH, MessageCost, Units, on_units

_SMALL = Limit(8 << 20, unit="bytes gathered", source="nccl-tests on 8 A100s: 27% of the bandwidth of large sizes")
_SMALL_ON_CPUS = Limit(
    256 << 10, unit="bytes gathered", source="gloo on one host: 0.1 to 0.3 ms of latency, 64 KiB take 0.34 ms (2026-11)"
)
_MOST_BYTES = 64 << 20
"""No unit above it is small, whatever the network."""
_LEAST = Limit(4, unit="units", source="stepscope's choice, 2026-11: fewer have little to merge")
_HALF = Limit(0.5, unit="of the units", source="stepscope's choice, 2026-11: most of them")


@on_units()
def _fsdp_small_units_of_units(units: Units) -> Statement:
    """Look in the sharded units of a job for: sharded units are too small for the network."""
    if not units.sizes:
        return skipped("the sizes of the units are not recorded")
    cost = units.cost()
    limit_bytes = _limit_bytes(units, cost)
    small = {unit for unit, size in units.sizes.items() if size < limit_bytes}
    small_calls = [call for call in units.calls if call[0].unit in small]
    share, on_host = units.share(small_calls), 0.0
    # Calls that are left, and their bytes, when units are merged to four times the limit, of which latency is a fifth.
    alike = grouped((first for first, *_ in small_calls), lambda first: (first.step, first.op, first.phase))
    together = [sum(call.size_bytes or 0 for call in calls) for calls in alike.values()]
    kept = [(math.ceil(max(1.0, size / (4 * limit_bytes))), size) for size in together]
    fewer = len(small_calls) - sum(calls for calls, _ in kept)
    if cost is not None and cost.latency_ns > 0:
        merged_ns = sum(cost.of(size / calls) * calls for calls, size in kept)
        share = min(share, max(fewer * cost.latency_ns / units.step_ns, share - merged_ns / units.step_ns))
    if units.calls:
        on_host = min(1.0 - share, fewer / len(units.calls) * units.host_share)
        share += on_host
    sentence = f"{len(small)} of {len(units.sizes)} units gather less than {format_bytes_binary(limit_bytes)}"
    if len(small) < max(_LEAST, _HALF * len(units.sizes)) or share < WORTH:
        limit = format_percent(WORTH)
        return f"{sentence}; merging them returns {format_percent(share)} of the step, limit {limit}"
    return units.finding(
        small_calls,
        share,
        f"sharded units are too small: larger ones save up to {format_percent(share)} of the step",
        f"{sentence}, {format_bytes_binary(median(units.sizes[u] for u in small))} in the median",
        f"{len(small_calls)} collectives of these units in {units.step_count} steps",
        cause=f"{sentence}; {len(small_calls) / units.step_count:.0f} collectives a step are theirs",
        limit="larger units still move the same bytes",
        advice=units.advice("larger units"),
        on_host=on_host,
    )


def _limit_bytes(units: Units, cost: MessageCost | None) -> float:
    """The size below which latency takes longer than the transfer, in this job; the table's where latency is unknown."""
    table = _SMALL_ON_CPUS if units.on_cpus else _SMALL
    if cost is None or not cost.latency_ns:
        return table
    measured = min(cost.useful_bytes, _MOST_BYTES)
    return measured if units.on_cpus else max(measured, table)


RULE = Rule(
    symptom="sharded units are too small for the network",
    look_at_job=_fsdp_small_units_of_units,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={
        "small": _SMALL,
        "small on CPUs": _SMALL_ON_CPUS,
        "least": _LEAST,
        "share": _HALF,
        "of the step": WORTH,
    },
)
