"""A tensor-parallel group crosses hosts, over links slower than those inside one.

What
----
Collectives of tensor-parallel groups whose ranks are on several hosts. Fires when their exposed transfer (waiting left
out) is {of the step} and their bus bandwidth is below half of what collectives of at least a quarter of their size reach
inside a host of the same job; without such a reference, below {of the links}. Without either it fires on
the exposed transfer alone, and says so.

Why
---
Every layer waits for its collectives, in the forward and the backward pass: nothing of the same micro-batch can hide them.
Links inside a host carry 300 to 900 GB/s a GPU, those between hosts 25 to 100.

Known problems
--------------
Where a fast fabric spans hosts (NVL72), crossing costs little: the measured bandwidth decides. A host with one rank cannot
hold a group, so the advice is another strategy. All ranks of a group must be traced and name their host.

References
----------
Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, section 3.2 and takeaway 1 (tensor
parallelism up to the GPUs of a server); docs/reference/metrics.md, Collectives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bandwidth, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, finding, skipped
from stepscope.diagnose.trace_facts import device_name, unread
from stepscope.diagnose.unit_facts import WORTH
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import TraceEvidence

_SLOW = Limit(
    0.5, unit="of the bandwidth inside a host", source="stepscope's choice, 2026-11: half; hosts lie at 0.05 to 0.3"
)
_OF_LINKS = Limit(
    0.3, unit="of the device's links", source="stepscope's choice, 2026-11: no network between hosts reaches it"
)
_COMPARABLE = 0.25
"""Start-up dominates a collective of a smaller share of the size."""


def _tensor_parallel_slow_link_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: tensor parallelism crosses a slow link."""
    summary = job.summary
    if summary.collectives is None:
        return unread(summary, "no collective was recorded")
    kinds = {g.group: g.kind for p in summary.ranks for g in p.groups}
    divided = [i for i in summary.collectives.instances if i.group and kinds.get(i.group.name) == "tp"]
    if not divided:
        return skipped("no tensor-parallel group in these traces")
    hosts = {rank: host for rank, host in summary.hosts.items() if host}
    complete = [
        i for i in divided if i.complete and i.transfer_ns is not None and all(r.rank in hosts for r in i.ranks)
    ]
    if not complete:
        return skipped("no tensor-parallel group with traces of all its ranks that name their hosts")
    across = [i for i in complete if len({hosts[r.rank] for r in i.ranks}) > 1]
    if not across:
        return f"tensor-parallel groups of {counted(max(len(i.ranks) for i in complete), 'rank')} stay within a host"
    # Exposed transfer of the group with most of it; of an instance's ranks the least exposed: no waiting.
    spent: dict[tuple[int, ...], int] = defaultdict(int)
    for instance in across:
        spent[tuple(r.rank for r in instance.ranks)] += min(r.exposed_ns for r in instance.ranks)
    share = min(1.0, max(spent.values()) / (median(summary.windows_ns.values() or [0]) or 1))
    if share < WORTH:
        return (
            f"{format_percent(share)} of the step is exposed transfer of tensor-parallel groups across hosts, limit "
            f"{format_percent(WORTH)}"
        )
    reached = _median_bus_bandwidth(across)
    reference, limit, source = _reference_bandwidth(summary, across, hosts)
    if reached is not None and reference is not None and reached >= limit * reference:
        return f"across hosts at {format_bandwidth(reached)}, {format_percent(reached / reference)} of {source}"
    groups = f"{counted(len(spent), 'group')} of {len(across[0].ranks)} ranks across hosts"
    against = f"; {source}: {format_bandwidth(reference)}" if reference is not None else ""
    worst = max(across, key=lambda i: min(r.exposed_ns for r in i.ranks)).ranks[0]
    unsure = "; nothing to compare the links with: those inside a host may be no faster"
    return finding(
        f"tensor parallelism crosses hosts: {format_percent(share)} of the step is exposed transfer between them",
        groups,
        reached is not None and f"bus bandwidth across hosts {format_bandwidth(reached)}{against}",
        cause=f"tensor parallelism crosses hosts: {groups}",
        stake=share,
        ranks=tuple(r.rank for r in across[0].ranks),
        at_ns=(worst.start_ns, worst.end_ns),
        confidence="measured" + (unsure if reference is None else ""),
        advice=[
            advise(
                _better_group_advice(len(across[0].ranks), max(Counter(hosts.values()).values())),
                key="group on one host",
            ),
            ("see what each layer sends", "--show layers,groups"),
        ],
    )


def _better_group_advice(size: int, a_host: int) -> str:
    if a_host == 1:
        return (
            "no group fits on a host of one rank: shard over data-parallel ranks (fsdp2) or split the model into pipeline "
            "stages, which send less and wait less often"
        )
    if size > a_host:
        fits = max(n for n in range(1, a_host + 1) if size % n == 0)
        rest = "use data or pipeline parallelism between hosts"
        return f"make the group {fits} ranks, which fit on a host, and {rest}" if fits > 1 else rest
    return "place each group on one host: make tp the last dimension of the mesh, whose ranks are neighbours"


def _median_bus_bandwidth(instances: Sequence[MatchedCollective]) -> float | None:
    """Median bus bandwidth of the larger half, which start-up slows least."""
    rated = sorted(
        ((i.size_bytes, i.busbw_bytes_per_s) for i in instances if i.size_bytes and i.busbw_bytes_per_s), reverse=True
    )
    return median(rate for _, rate in rated[: (len(rated) + 1) // 2]) if rated else None


def _reference_bandwidth(
    summary: TraceSummary, across: Sequence[MatchedCollective], hosts: Mapping[int, str]
) -> tuple[float | None, float, str]:
    """Return (bandwidth inside a host, share of it that counts as fast, what it is)."""
    largest = max((i.size_bytes or 0 for i in across), default=0)
    inside = [
        i
        for i in (summary.collectives.instances if summary.collectives else ())
        if i.complete
        and len(i.ranks) > 1
        and (i.size_bytes or 0) >= _COMPARABLE * largest
        and all(r.rank in hosts for r in i.ranks)
        and len({hosts[r.rank] for r in i.ranks}) == 1
    ]
    if (rate := _median_bus_bandwidth(inside)) is not None:
        return rate, _SLOW, "collectives inside a host"
    from stepscope.machine.peaks import lookup

    device = lookup.find(device_name(summary) or "")
    if not isinstance(device, Unavailable) and device.link is not None and not device.link.optional:
        return device.link.bytes_per_s, _OF_LINKS, f"the links of {device.name}"
    return None, 0.0, ""


RULE = Rule(
    symptom="tensor parallelism crosses a slow link",
    look_at_job=_tensor_parallel_slow_link_of_job,
    claims=("communication",),
    kind="communication-bound",
    names_cause=True,
    protocol=3,
    thresholds={"slow": _SLOW, "of the links": _OF_LINKS, "of the step": WORTH},
)
