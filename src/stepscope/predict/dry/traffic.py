"""A dry run's collectives as calls of a measured job: when each can begin, who waits for it, and what it costs there."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.predict.dry.clocks import Clocks
from stepscope.predict.job import JobCall, PricedCall
from stepscope.predict.overlap import STARTUP_BYTES
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster
from stepscope.records import mesh as meshes
from stepscope.records.dry_run import DryCall, DryGroup, DryRank

MESSAGES = ("send", "recv")
PRICED_AS = {"send": "send_recv", "recv": "send_recv"}


def job_calls(rank: DryRank, clocks: Clocks) -> list[JobCall]:
    """Return the calls in the order in which they can begin: those of one group in the host's order.

    A call begins when the host has made it and what its stream waits for is computed.
    """
    end = clocks.length_ns
    begun: dict[int, float] = {}
    calls: list[JobCall] = []
    for call in rank.calls:
        ready = max(clocks.host_ns[call.at], clocks.device_ns[call.at if call.after is None else call.after])
        needed = clocks.device_ns[_waited(rank, call)] if call.waited is not None else end
        ready = max(begun.get(call.group, 0.0), min(ready, needed))
        begun[call.group] = ready
        calls.append(
            JobCall(
                op=PRICED_AS.get(call.op, call.op),
                size_bytes=call.size_bytes,
                ready_ns=ready,
                needed_ns=max(ready, needed),
                group=rank.groups[call.group].axis or meshes.WORLD,
                activations=call.carries == "activations",
            )
        )
    return calls


def _waited(rank: DryRank, call: DryCall) -> int:
    assert call.waited is not None
    return min(call.waited, len(rank.order))


def members(rank: DryRank, call: DryCall) -> Sequence[int]:
    """Return the ranks that take part in a call."""
    group: DryGroup = rank.groups[call.group]
    return group.ranks if call.op not in MESSAGES or call.peer is None else (rank.rank, call.peer)


def priced(rank: DryRank, cluster: Cluster, c: StepCalibration) -> list[PricedCall]:
    """Price each call on the links that its ranks have."""
    domains: dict[Sequence[int], int] = {}
    prices: dict[tuple[str, int, Sequence[int], int], PricedCall] = {}
    made = []
    for call in rank.calls:
        ranks = members(rank, call)
        key = call.op, call.size_bytes, ranks, call.group
        if key not in prices:
            if ranks not in domains:
                domains[ranks] = cluster.domains_of(ranks)
            op, place = PRICED_AS.get(call.op, call.op), (len(ranks), domains[ranks])
            share = c.comm_rate if place[1] > 1 else c.comm_near_rate
            alone = cluster.group_time(op, call.size_bytes, *place) / share * 1e9
            prices[key] = PricedCall(
                alone_ns=alone,
                latency_ns=min(alone, cluster.group_time(op, min(STARTUP_BYTES, call.size_bytes), *place) * 1e9),
                stream=str(call.group),
                links="network" if place[1] > 1 else "node",
            )
        made.append(prices[key])
    return made
