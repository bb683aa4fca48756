"""Computation and collectives side by side: each is launched when it is ready and its lane is free, and waited for.

Time is counted twice: as it passes, and as *progress*, the computation done so far. A collective is ready at a progress
and needed at one: there computation waits until it has ended. Pure: times of collectives alone come from the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from stepscope.predict.transport import Transport

_DUST_NS = 1e-3


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One collective on its way. ready, needed: progress, ns. latency, wire: what is left of its time alone, ns.

    link: share of the link's rate that it takes alone (:meth:`stepscope.collectives.Cost.link_share`). blocking: launched
    only when nothing else is on its way, and computation waits for it from ``ready`` on. stall: how long starting it stops
    computation. The rest is filled in as time passes.
    """

    ready: float
    needed: float
    latency: float
    wire: float
    link: float = 1.0
    blocking: bool = False
    stall: float = 0.0
    ready_at: float = 0.0
    launch: float = 0.0
    start: float = 0.0
    end: float = 0.0
    lane: int = 0
    finished: bool = False


def run(jobs: Sequence[Transfer], compute_ns: float, transport: Transport) -> float:
    """Let time pass until computation and all of ``jobs``, launched in their order, are done; how long it waits for them.

    That is time in which computation stands still or is over, and a collective is not.

    Computation never waits for a collective before those in front of it can be launched too. State between two events:
    progress, collectives under way with what is left of them.
    """
    waiting, queue = deque(jobs), deque[Transfer]()
    active: list[Transfer] = []
    unready = deque(sorted(jobs, key=lambda job: job.ready))
    launchable = accumulate((job.ready for job in jobs), max)
    needs = deque(
        sorted(((max(job.needed, at), job) for job, at in zip(jobs, launchable, strict=True)), key=lambda each: each[0])
    )
    now, done, stall, waited = 0.0, 0.0, 0.0, 0.0
    while True:
        while unready and unready[0].ready <= done + _DUST_NS:
            unready.popleft().ready_at = now
        unfinished = done < compute_ns
        while waiting and _may_launch(waiting[0], idle=not active and not queue, done=done):
            job = waiting.popleft()
            job.launch = now
            stall += job.stall if unfinished else 0.0
            queue.append(job)
        while queue and len(active) < transport.lanes:
            job = queue.popleft()
            job.start = now
            job.lane = min(set(range(transport.lanes)) - {a.lane for a in active})
            active.append(job)
        while needs and needs[0][1].finished:
            needs.popleft()
        held = bool(needs) and needs[0][0] <= done + _DUST_NS
        computing = unfinished and not held
        if not unfinished and not active:
            return waited
        stalled = computing and stall > 0
        compute_rate = (1 / transport.compute_slowdown if active else 1.0) if computing and not stalled else 0.0
        comm_rate = 1 / transport.comm_slowdown if computing else 1.0
        wire_rate = comm_rate / max(sum(job.link for job in active if job.latency == 0), 1.0)
        steps = [job.latency / comm_rate if job.latency else job.wire / wire_rate for job in active]
        if stalled:
            steps.append(stall)
        elif computing:
            upcoming = min(compute_ns, unready[0].ready if unready else compute_ns)
            upcoming = min(upcoming, needs[0][0]) if needs else upcoming
            steps.append((upcoming - done) / compute_rate)
        step = max(0.0, min(steps))
        now += step
        waited += 0.0 if computing else step
        if stalled:
            stall = _less(stall, step)
        elif computing:
            done += step * compute_rate
            if compute_ns - done <= _DUST_NS:
                done = compute_ns
        for job in active:
            if job.latency:
                job.latency = _less(job.latency, step * comm_rate)
            else:
                job.wire = _less(job.wire, step * wire_rate)
            if not job.latency and not job.wire:
                job.end, job.finished = now, True
        active = [job for job in active if job.latency or job.wire]


def _may_launch(job: Transfer, *, idle: bool, done: float) -> bool:
    return job.ready <= done + _DUST_NS and (idle or not job.blocking)


def _less(left: float, spent: float) -> float:
    """``left`` minus ``spent``, without the dust of floating point."""
    return left - spent if left - spent > _DUST_NS else 0.0
