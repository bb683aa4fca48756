"""Computation and collectives side by side: each is launched when it is ready and its lane is free, and waited for.

Time is counted twice: as it passes, and as *progress*, the computation done so far. A collective is ready at a progress
and needed at one: there computation waits until it has ended. Times of collectives alone come from the caller; a
``Transport`` says how many run at once and what collectives and computation slow each other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.predict.calibration import usual_cost
from stepscope.records.comm import CommRow

LANES = {"gloo": 2, "nccl": 1}
"""gloo runs a group's collectives on two threads, NCCL one after the other on one stream."""

MIN_BYTES = 256 << 10
"""Overlap is taken from messages of this size on: buckets are no smaller, and shorter ones measure start-up."""

NO_SLOWDOWN = 0.05
"""Computation slowed by less than this share is not slowed: repeated measurements of one machine differ by as much."""

STARTUP_BYTES = 4 << 10
"""A message that is start-up and nothing else."""

STALL_NS = 450_000.0
"""Of start-up, what is work of the cores at most: all of it between two ranks of one host (1 KiB all-reduce of gloo on
loopback, mean 447 us). What is longer waits for the network, and cores compute meanwhile."""


@record
class Transport:
    """How collectives run beside each other and beside the backward pass.

    lanes: how many of one communicator run at once, in launch order. They share the link: what of a collective is wire time
    takes as many times longer as all of them together ask of its rate, the rest does not.
    compute_slowdown: duration of computation while a collective runs / alone; comm_slowdown: of a collective while the
    backward pass runs / alone. 1 or more.
    startup_stalls: starting a collective is work of the cores that compute, and stops computation for as long as the
    smallest message takes, at most ``STALL_NS`` (gloo on ranks that have no core to spare).
    """

    lanes: int
    compute_slowdown: float = 1.0
    comm_slowdown: float = 1.0
    startup_stalls: bool = False

    def stall_ns(self, startup_ns: float) -> float:
        """Return how long starting a collective stops computation; startup_ns: what its smallest message takes."""
        return min(startup_ns, STALL_NS) if self.startup_stalls else 0.0


def transport_of(backend: str) -> Transport:
    """Return the backend's lanes without slowdown."""
    try:
        return Transport(lanes=LANES[backend])
    except KeyError:
        raise UsageError(unknown("backend", backend, LANES)) from None


def link_share(op: str, ranks: int, *, backend: str) -> float:
    """Share of the busiest link's rate that one call takes, 0 to 1: what is left, another call may take at the same time."""
    return usual_cost(op, backend).link_share(ranks)


def measured_transport(backend: str, rows: Iterable[CommRow]) -> Transport:
    """The backend's lanes, with the slowdowns of the overlap rows of all_reduce (``stepscope comm --overlap``).

    Medians over the sizes from ``MIN_BYTES`` on. Start-up stalls computation where gloo slows it at all: then the ranks
    have no core to spare. Raises UsageError without such rows.
    """
    rates = [
        rates_while_both_run(row.slowdown, row.beside_slowdown)
        for row in rows
        if row.kind == "overlap" and row.status == "ok" and row.op == "all_reduce" and row.backend == backend
        if row.slowdown and row.beside_slowdown and (row.size_bytes or 0) >= MIN_BYTES
    ]
    if not rates:
        raise UsageError(
            f"no overlap of all_reduce on {backend} was measured from {MIN_BYTES >> 10} KiB on",
            fix="stepscope comm --ops all_reduce --sizes 1M:16M:4 --overlap",
        )
    lanes = transport_of(backend).lanes
    comm, compute = (statistics.median(values) for values in zip(*rates, strict=True))
    return Transport(
        lanes=lanes,
        comm_slowdown=max(1.0, comm),
        compute_slowdown=max(1.0, compute),
        startup_stalls=backend == "gloo" and compute > 1 + NO_SLOWDOWN,
    )


def rates_while_both_run(comm: float, compute: float) -> tuple[float, float]:
    """Return for (collective, computation) the duration while both run / alone, from together / alone of one measurement.

    The two are equally long alone (1) and start together. The one that ends first, at ``first``, ran beside the other
    throughout: its ratio is the slowdown. The other one had got ``first / slowdown`` of its work done by then and did the
    rest alone, so ``slowdown = first / (1 - (last - first))``. Where that is not positive the two were not equally long,
    and the ratio itself is taken.
    """
    first, last = min(comm, compute), max(comm, compute)
    together = 1 - (last - first)
    slower = first / together if together > 0 else last
    return (first, slower) if comm <= compute else (slower, first)


_DUST_NS = 1e-3


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One collective on its way. ready, needed: progress, ns. latency, wire: what is left of its time alone, ns.

    link: share of the link's rate that it takes alone (:meth:`stepscope.collectives.Cost.link_share`). blocking: launched
    only when nothing else is on its way, and computation waits for it from ``ready`` on. stall: how long starting it stops
    computation. stream: its communicator; links: those it takes, shared with all on links of that name. The rest is filled
    in as time passes.
    """

    ready: float
    needed: float
    latency: float
    wire: float
    link: float = 1.0
    blocking: bool = False
    stall: float = 0.0
    stream: str = ""
    links: str = ""
    ready_at: float = 0.0
    launch: float = 0.0
    start: float = 0.0
    end: float = 0.0
    lane: int = 0
    finished: bool = False


def run(jobs: Sequence[Transfer], compute_ns: float, transport: Transport) -> float:
    """Let time pass until computation and ``jobs``, launched in their order, are done; return how long it waits for them.

    That is time in which computation stands still or is over, and a collective is not.

    Computation never waits for a collective before those in front of it can be launched too. State between two events:
    progress, collectives under way with what is left of them.
    """
    waiting = deque(jobs)
    queues: dict[str, deque[Transfer]] = {job.stream: deque() for job in jobs}
    active: list[Transfer] = []
    unready = deque(sorted(jobs, key=lambda job: job.ready))
    launchable = accumulate((job.ready for job in jobs), max)
    needs = deque(
        sorted(((max(job.needed, at), job) for job, at in zip(jobs, launchable, strict=True)), key=lambda need: need[0])
    )
    now, done, stall, waited = 0.0, 0.0, 0.0, 0.0
    while True:
        while unready and unready[0].ready <= done + _DUST_NS:
            unready.popleft().ready_at = now
        unfinished = done < compute_ns
        while waiting and (
            waiting[0].ready <= done + _DUST_NS and not (waiting[0].blocking and (active or any(queues.values())))
        ):
            job = waiting.popleft()
            job.launch = now
            stall += job.stall if unfinished else 0.0
            queues[job.stream].append(job)
        for stream, queue in queues.items():
            while queue and (free := set(range(transport.lanes)) - {a.lane for a in active if a.stream == stream}):
                job = queue.popleft()
                job.start = now
                job.lane = min(free)
                active.append(job)
        while needs and needs[0][1].finished:
            needs.popleft()
        blocked = bool(needs) and needs[0][0] <= done + _DUST_NS
        computing = unfinished and not blocked
        if not unfinished and not active:
            return waited
        stalled = computing and stall > 0
        compute_rate = (1 / transport.compute_slowdown if active else 1.0) if computing and not stalled else 0.0
        comm_rate = 1 / transport.comm_slowdown if computing else 1.0
        asked: defaultdict[str, float] = defaultdict(float)
        for job in active:
            asked[job.links] += 0.0 if job.latency else job.link
        wire_rate = {links: comm_rate / max(share, 1.0) for links, share in asked.items()}
        steps = [job.latency / comm_rate if job.latency else job.wire / wire_rate[job.links] for job in active]
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
            stall = _remainder(stall, step)
        elif computing:
            done += step * compute_rate
            if compute_ns - done <= _DUST_NS:
                done = compute_ns
        for job in active:
            if job.latency:
                job.latency = _remainder(job.latency, step * comm_rate)
            else:
                job.wire = _remainder(job.wire, step * wire_rate[job.links])
            if not job.latency and not job.wire:
                job.end, job.finished = now, True
        active = [job for job in active if job.latency or job.wire]


def _remainder(left: float, spent: float) -> float:
    """``left`` minus ``spent``, without the dust of floating point."""
    return left - spent if left - spent > _DUST_NS else 0.0
