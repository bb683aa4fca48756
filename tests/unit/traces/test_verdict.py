"""The one-line verdict: the largest exposed part decides."""

from __future__ import annotations

import pytest

from stepscope.records.trace_budget import IdleCause, Parts, RankBudget
from stepscope.records.trace_collectives import ExactSpans, RankWaitTotal
from stepscope.traces.activity import verdict_of


def budget(compute: int = 0, comm: int = 0, overlap: int = 0, memory: int = 0, idle: int = 0) -> RankBudget:
    window = compute + comm - overlap + memory + idle
    return RankBudget(
        rank=0,
        source="device",
        start_ns=0,
        event_count=1,
        parts=Parts(
            window_ns=window,
            compute_ns=compute,
            comm_ns=comm,
            memory_ns=memory,
            overlap_ns=overlap,
            exposed_comm_ns=comm - overlap,
            exposed_memory_ns=memory,
            busy_ns=window - idle,
            idle_ns=idle,
        ),
    )


def waits(exposed: int, *, alone: int | None = None) -> RankWaitTotal:
    return RankWaitTotal(
        rank=0,
        waiting_ns=exposed,
        times_last=0,
        instances=1,
        alone=ExactSpans(start_ns=0, packed=""),
        alone_ns=exposed if alone is None else alone,
        exposed_ns=exposed,
        exposed_by_call=(),
        ahead_by_call=(),
    )


def idle(cause: str, ns: int) -> IdleCause:
    return IdleCause(rank=0, cause=cause, idle_ns=ns, gap_count=1, largest_ns=ns)


@pytest.mark.parametrize(
    ("given", "causes", "waiting", "kind"),
    [
        (budget(compute=900, comm=50, idle=50), [], None, "compute"),
        (budget(compute=200, comm=700, idle=100), [], 0, "communication"),
        (budget(compute=200, comm=700, idle=100), [], 600, "waiting"),
        (budget(compute=300, idle=700), [idle("data", 600)], None, "input"),
        (budget(compute=300, idle=700), [idle("host_late", 400), idle("launch_latency", 200)], None, "launch"),
        (budget(compute=300, idle=700), [idle("sync", 600)], None, "launch"),
        (budget(compute=100, memory=800, idle=100), [], None, "memory"),
        (budget(compute=450, comm=500, idle=50), [], 0, "balanced"),
        (budget(compute=100, idle=900), [], None, "idle"),
        (budget(), [], None, "unknown"),
    ],
)
def test_the_largest_exposed_part_names_the_verdict(
    given: RankBudget, causes: list[IdleCause], waiting: int | None, kind: str
) -> None:
    assert verdict_of(given, causes, waits=None if waiting is None else waits(waiting)).kind == kind


def test_a_straggler_is_not_bound_by_waiting() -> None:
    """Its largest part is waiting for its pipeline's neighbour, but the job waits for this rank."""
    verdict = verdict_of(budget(compute=200, comm=700, idle=100), [], waits=waits(600), late="more compute")
    assert verdict.kind == "compute"
    assert verdict.text.startswith("the other ranks wait for this one (more compute); ")
