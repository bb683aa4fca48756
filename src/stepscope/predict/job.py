"""A measured job as a prediction needs it: one step's computation, and the collectives that it calls and waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import UsageError
from stepscope.core.units import format_size
from stepscope.predict.overlap import Job, run
from stepscope.predict.transport import STARTUP_BYTES, Transport

CommTime = Callable[[str, int], float]
"""Time of one collective alone, ns, from its op and S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCall:
    """One collective of the step. ready_ns, needed_ns: progress. time_ns: its transfer as measured; None: of a plan."""

    op: str
    size_bytes: int
    ready_ns: float
    needed_ns: float
    time_ns: float | None = None
    blocking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """Some of what DDP reduces: ready at this progress (ns), this large."""

    ready_ns: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One job on ``ranks`` ranks. Times in ns, of the slowest rank of a median step.

    length_ns: the step without waiting for communication: compute_ns + copies_ns + input_ns + idle_ns. tail_ns: of it, what
    follows the last reduction (optimizer, the rest). spread_ns: standard deviation of that length between ranks of one step,
    from ``spread_from`` values; spread_of: ranks | steps (one rank alone was seen).
    gpu: key of the hardware table; None: no GPU, or an unknown one. nodes: None: not told. products: share of computation
    that multiplies matrices; None: not told. dtype: what it multiplies in. gradients: what DDP's buckets hold, empty where
    buckets cannot be made anew. points: (ranks, step) of the same job where it was measured, this one included.
    """

    name: str
    source: str
    ranks: int
    seen_ranks: int
    nodes: int | None
    backend: str
    device: str
    gpu: str | None
    step_ns: float
    length_ns: float
    compute_ns: float
    copies_ns: float
    input_ns: float
    tail_ns: float
    spread_ns: float
    spread_from: int
    spread_of: str
    transport: Transport
    calls: tuple[JobCall, ...]
    products: float | None = None
    dtype: str | None = None
    global_batch: int | None = None
    network: str | None = None
    gradients: tuple[Gradient, ...] = ()
    points: tuple[tuple[int, float], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def idle_ns(self) -> float:
        return max(0.0, self.length_ns - self.compute_ns - self.copies_ns - self.input_ns)

    @property
    def comm_bytes(self) -> int:
        return sum(call.size_bytes for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A step put together again. exposed_ns: of the step, computation waits for collectives; comm_ns: sum of their times."""

    step_ns: float
    exposed_ns: float
    comm_ns: float


def replayed(job: MeasuredJob, comm_time: CommTime, *, perfect: bool = False) -> Replayed:
    """The step with every collective at its price. perfect: nothing waits before the end, and all that can hide does."""
    times = [comm_time(call.op, call.size_bytes) for call in job.calls]
    total = sum(times)
    if perfect:
        step = max(job.length_ns, total)
        return Replayed(step_ns=step, exposed_ns=step - job.length_ns, comm_ns=total)
    jobs = []
    for call, alone in zip(job.calls, times, strict=True):
        latency = min(alone, comm_time(call.op, min(STARTUP_BYTES, call.size_bytes)))
        jobs.append(
            Job(
                ready=min(call.ready_ns, job.length_ns),
                needed=min(call.needed_ns, job.length_ns),
                blocking=call.blocking,
                latency=latency,
                wire=alone - latency,
                stall=latency if job.transport.startup_stalls else 0.0,
            )
        )
    waited = run(jobs, job.length_ns, job.transport)
    step = max([job.length_ns + waited, *(each.end for each in jobs)])  # collectives may slow computation, too
    return Replayed(step_ns=step, exposed_ns=step - job.length_ns, comm_ns=total)


def stretched(job: MeasuredJob, *, body: float, tail: float) -> MeasuredJob:
    """``job`` with its progress before the tail ``body`` times as long, and the tail ``tail`` times."""
    end = job.length_ns - job.tail_ns

    def at(progress: float) -> float:
        return min(progress, end) * body + max(0.0, progress - end) * tail

    calls = tuple(replace(c, ready_ns=at(c.ready_ns), needed_ns=at(c.needed_ns)) for c in job.calls)
    gradients = tuple(replace(g, ready_ns=at(g.ready_ns)) for g in job.gradients)
    return replace(job, length_ns=at(job.length_ns), tail_ns=job.tail_ns * tail, calls=calls, gradients=gradients)


def rebucketed(job: MeasuredJob, bucket_bytes: int) -> MeasuredJob:
    """``job`` with DDP's buckets of this size: each is closed as it reaches it. Raises UsageError where none are known."""
    if not job.gradients:
        raise UsageError(
            f"--what-if bucket={format_size(bucket_bytes)}: {job.name} shows no gradient buckets to make again",
            why="it needs two buckets of DDP at least, launched during the backward pass",
        )
    needed = max(c.needed_ns for c in job.calls if c.op == "all_reduce")
    buckets: list[JobCall] = []
    held = 0
    for place, gradient in enumerate(job.gradients):
        held += gradient.size_bytes
        if held >= bucket_bytes or place == len(job.gradients) - 1:
            buckets.append(JobCall(op="all_reduce", size_bytes=held, ready_ns=gradient.ready_ns, needed_ns=needed))
            held = 0
    others = [c for c in job.calls if c.op != "all_reduce"]
    return replace(job, calls=tuple(sorted([*others, *buckets], key=lambda c: c.ready_ns)))


def gradients_between(buckets: Sequence[JobCall], *, pieces: int = 16) -> tuple[Gradient, ...]:
    """What buckets hold, as evenly ready from the bucket before; of the first, at the rate of the others.

    Empty for less than two, or where all are ready at once.
    """
    ordered = sorted(buckets, key=lambda c: c.ready_ns)
    if len(ordered) < 2 or ordered[-1].ready_ns <= ordered[0].ready_ns:
        return ()
    rate = (ordered[-1].ready_ns - ordered[0].ready_ns) / max(1, sum(c.size_bytes for c in ordered[1:]))
    before = max(0.0, ordered[0].ready_ns - rate * ordered[0].size_bytes)
    found: list[Gradient] = []
    for bucket in ordered:
        for piece in range(1, pieces + 1):
            size = bucket.size_bytes * piece // pieces - bucket.size_bytes * (piece - 1) // pieces
            found.append(Gradient(ready_ns=before + (bucket.ready_ns - before) * piece / pieces, size_bytes=size))
        before = bucket.ready_ns
    return tuple(found)
