"""A measured job as a prediction needs it: one step's computation, and the collectives that it calls and waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from statistics import median

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_size
from stepscope.predict.overlap import STARTUP_BYTES, Transfer, Transport, link_share, run
from stepscope.predict.pipeline import PipelineTimeline, StageTime, simulate
from stepscope.records import mesh as meshes
from stepscope.records.mesh import PipelineLayout

CommTime = Callable[[str, int, int], float]
"""Time of one collective alone, ns, from its op, S and ranks."""


@record
class JobCall:
    """One collective of the step. ready_ns, needed_ns: progress. time_ns: its transfer as measured; None: of a plan.

    group: the mesh dimension whose ranks make it. activations: it carries those, which grow with the batch of a rank.
    """

    op: str
    size_bytes: int
    ready_ns: float
    needed_ns: float
    time_ns: float | None = None
    blocking: bool = False
    group: str = meshes.WORLD
    activations: bool = False


@record
class JobPipeline:
    """The schedule of a job with stages.

    took_ns: every computation of some steps, by rank in the order of its actions. messages: by stage, bytes of a
    micro-batch's output for the next stage and of its gradient for the one before, 0 where none is sent. reductions: sizes,
    by rank along the pipeline, that its replicas add up when its schedule is through. meeting: of
    :func:`stepscope.predict.pipeline.simulate`. rounds: schedules in a step (accumulation).
    """

    layout: PipelineLayout
    took_ns: tuple[tuple[tuple[float, ...], ...], ...]
    messages: tuple[tuple[int, int], ...]
    reductions: tuple[tuple[int, ...], ...]
    meeting: bool
    rounds: int = 1

    def scaled(self, factor: float) -> JobPipeline:
        """Return the pipeline with computation ``factor`` times as long."""
        took = tuple(tuple(tuple(ns * factor for ns in rank) for rank in step) for step in self.took_ns)
        return replace(self, took_ns=took)

    def simulated(
        self, message_ns: Callable[[int], float] = lambda _: 0.0, *, half_duplex: bool = False
    ) -> list[PipelineTimeline]:
        """Simulate each step's schedule with messages of these times."""
        sent = [
            StageTime(
                forward_ns=0.0,
                backward_ns=0.0,
                send_ns=message_ns(ahead) if ahead else 0.0,
                send_back_ns=message_ns(back) if back else 0.0,
            )
            for ahead, back in self.messages
        ]
        return [
            simulate(self.layout, sent, half_duplex=half_duplex, meeting=self.meeting, took_ns=took)
            for took in self.took_ns
        ]

    @property
    def alone_ns(self) -> float:
        """A step's schedules with free messages, median over the steps."""
        return self.rounds * median(line.step_ns for line in self.simulated())


@record
class Gradient:
    """Some of what DDP reduces: ready at this progress (ns), this large."""

    ready_ns: float
    size_bytes: int


@record
class MeasuredJob:
    """One job on ``ranks`` ranks. Times in ns, of the slowest rank of a median step.

    length_ns: the step without waiting for communication: compute_ns + copies_ns + input_ns + idle_ns. tail_ns: of it, what
    follows the last reduction (optimizer, the rest). spread_ns: standard deviation of that length between ranks of one step,
    from ``spread_from`` values; spread_of: ranks | steps (one rank alone was seen).
    gpu: key of the hardware table; None: no GPU, or an unknown one. nodes: None: not told. products: share of computation
    that multiplies matrices; None: not told. dtype: what it multiplies in. gradients: what DDP's buckets hold, empty where
    buckets cannot be made anew. points: (ranks, step) of the same job where it was measured, this one included.
    cores: of the one host whose cores its ranks compute on; None: devices compute, or it is not known.
    doubt: what a step on other numbers of ranks may differ by beside all else, as a share (80%).
    mesh: how its ranks are arranged (records/mesh.py). pipeline: of a job with stages, whose calls are in it alone.
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
    cores: int | None = None
    doubt: float = 0.0
    mesh: Mapping[str, int] = field(default_factory=dict)
    pipeline: JobPipeline | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def fixed_ranks(self) -> int:
        """Ranks of one replica, which stays as it is: a job has a multiple of them."""
        return self.ranks // self.replicas

    @property
    def replicas(self) -> int:
        return meshes.size(self.mesh, self.ranks, meshes.grows(self.mesh))

    def group_size(self, group: str, ranks: int) -> int:
        """Ranks that call a collective of ``group`` when the job has ``ranks``."""
        shape = {**self.mesh, meshes.grows(self.mesh): ranks // self.fixed_ranks} if self.mesh else {}
        return meshes.size(shape, ranks, group)

    @property
    def idle_ns(self) -> float:
        return max(0.0, self.length_ns - self.compute_ns - self.copies_ns - self.input_ns)

    @property
    def divided(self) -> bool:
        """Whether ranks share a replica's work: stages or tensor-parallel groups, which send activations."""
        return self.pipeline is not None or any(call.activations for call in self.calls)


@record
class Replayed:
    """A step put together again. exposed_ns: of the step, computation waits for collectives; comm_ns: sum of their times.
    runs: of each call at which progress it is needed, when it starts and ends; empty where that was not worked out."""

    step_ns: float
    exposed_ns: float
    comm_ns: float
    runs: tuple[tuple[float, float, float], ...] = ()


def replayed(job: MeasuredJob, comm_time: CommTime, *, ranks: int | None = None, perfect: bool = False) -> Replayed:
    """Put the step together with every collective at its price. ranks: None: as measured. perfect: nothing waits before the
    end, and all that can hide does."""
    world = ranks or job.ranks
    if job.pipeline is not None:
        return _with_stages(job, job.pipeline, comm_time, world, perfect=perfect)
    prices = []
    for call in job.calls:
        group = job.group_size(call.group, world)
        alone = comm_time(call.op, call.size_bytes, group)
        latency = min(alone, comm_time(call.op, min(STARTUP_BYTES, call.size_bytes), group))
        prices.append(
            PricedCall(alone_ns=alone, latency_ns=latency, link=link_share(call.op, group, backend=job.backend))
        )
    return replayed_at(job, prices, perfect=perfect)


@record
class PricedCall:
    """What one of a job's calls costs: alone, of that start-up, and the share of the rate of ``links`` that it takes.
    stream: its communicator, whose calls follow each other."""

    alone_ns: float
    latency_ns: float
    link: float = 1.0
    stream: str = ""
    links: str = ""


def replayed_at(job: MeasuredJob, prices: Sequence[PricedCall], *, perfect: bool = False) -> Replayed:
    """Put the step together with these prices, one for each of ``job.calls``."""
    total = sum(price.alone_ns for price in prices)
    if perfect:
        step = max(job.length_ns, total)
        return Replayed(step_ns=step, exposed_ns=step - job.length_ns, comm_ns=total)
    jobs = []
    for call, price in zip(job.calls, prices, strict=True):
        ready, needed = (min(at, job.length_ns) for at in (call.ready_ns, call.needed_ns))
        jobs.append(
            Transfer(
                ready=ready,
                needed=needed,
                blocking=call.blocking,
                latency=price.latency_ns,
                wire=price.alone_ns - price.latency_ns,
                link=price.link,
                stall=job.transport.stall_ns(price.latency_ns) if needed > ready else 0.0,
                stream=price.stream,
                links=price.links,
            )
        )
    waited = run(jobs, job.length_ns, job.transport)
    step = max([job.length_ns + waited, *(transfer.end for transfer in jobs)])  # collectives may slow computation, too
    runs = tuple((transfer.needed, transfer.start, transfer.end) for transfer in jobs)
    return Replayed(step_ns=step, exposed_ns=step - job.length_ns, comm_ns=total, runs=runs)


def _with_stages(
    job: MeasuredJob, pipeline: JobPipeline, comm_time: CommTime, world: int, *, perfect: bool
) -> Replayed:
    """The schedule is simulated with its messages; when a rank is through with it, its replicas add up their gradients."""
    replicas, layout = job.group_size("dp", world), pipeline.layout

    def message(size_bytes: int) -> float:
        return comm_time("send_recv", size_bytes, 2) if size_bytes else 0.0

    lines = pipeline.simulated(message, half_duplex=job.backend == "gloo")
    reducing = [sum(comm_time("all_reduce", size, replicas) for size in sizes) for sizes in pipeline.reductions]
    sent = [0.0] * layout.ranks
    for rank, (ahead, back) in zip(layout.rank_of_stage, pipeline.messages, strict=True):
        sent[rank] += layout.micro_batches * pipeline.rounds * (message(ahead) + message(back))
    total = max(out + more for out, more in zip(sent, reducing, strict=True))
    ends = [max(ends[-1] + more for ends, more in zip(line.ends_ns, reducing, strict=True)) for line in lines]
    whole = median((pipeline.rounds - 1) * line.step_ns + end for line, end in zip(lines, ends, strict=True))
    waited = whole - pipeline.alone_ns
    step = max(job.length_ns, total) if perfect else job.length_ns + waited
    return Replayed(step_ns=step, exposed_ns=step - job.length_ns, comm_ns=total)


def stretched(job: MeasuredJob, *, body: float, tail: float) -> MeasuredJob:
    """Return ``job`` with its progress before the tail ``body`` times as long, and the tail ``tail`` times."""
    end = job.length_ns - job.tail_ns

    def at(progress: float) -> float:
        return min(progress, end) * body + max(0.0, progress - end) * tail

    calls = tuple(replace(c, ready_ns=at(c.ready_ns), needed_ns=at(c.needed_ns)) for c in job.calls)
    gradients = tuple(replace(g, ready_ns=at(g.ready_ns)) for g in job.gradients)
    pipeline = None if job.pipeline is None else job.pipeline.scaled(body)
    return replace(
        job,
        length_ns=at(job.length_ns),
        tail_ns=job.tail_ns * tail,
        calls=calls,
        gradients=gradients,
        pipeline=pipeline,
    )


def sending(job: MeasuredJob, *, gradients: float, activations: float) -> MeasuredJob:
    """Return ``job`` with so many times the bytes in what it sends of either kind."""
    calls = tuple(
        replace(c, size_bytes=round(c.size_bytes * (activations if c.activations else gradients))) for c in job.calls
    )
    pipeline = job.pipeline and replace(
        job.pipeline,
        messages=tuple((round(a * activations), round(b * activations)) for a, b in job.pipeline.messages),
        reductions=tuple(tuple(round(n * gradients) for n in sizes) for sizes in job.pipeline.reductions),
    )
    return replace(job, calls=calls, pipeline=pipeline)


def rebucketed(job: MeasuredJob, bucket_bytes: int) -> MeasuredJob:
    """Return ``job`` with DDP's buckets closed as they reach this size. Raises UsageError where none are known."""
    if not job.gradients:
        raise UsageError(
            f"--what-if bucket={format_size(bucket_bytes)}: {job.name} shows no gradient buckets to make again",
            why="it needs two buckets of DDP at least, launched during the backward pass",
        )
    needed = max(c.needed_ns for c in job.calls if c.op == "all_reduce")
    buckets: list[JobCall] = []
    filled_bytes = 0
    for place, gradient in enumerate(job.gradients):
        filled_bytes += gradient.size_bytes
        if filled_bytes >= bucket_bytes or place == len(job.gradients) - 1:
            buckets.append(
                JobCall(op="all_reduce", size_bytes=filled_bytes, ready_ns=gradient.ready_ns, needed_ns=needed)
            )
            filled_bytes = 0
    others = [c for c in job.calls if c.op != "all_reduce"]
    return replace(job, calls=tuple(sorted([*others, *buckets], key=lambda c: c.ready_ns)))


def gradients_between(buckets: Sequence[JobCall]) -> tuple[Gradient, ...]:
    """Return what buckets hold, as if ready evenly since the bucket before; the first one's at the rate of the others.

    Empty for less than two, or where all are ready at once.
    """
    ordered = sorted(buckets, key=lambda c: c.ready_ns)
    if len(ordered) < 2 or ordered[-1].ready_ns <= ordered[0].ready_ns:
        return ()
    rate = (ordered[-1].ready_ns - ordered[0].ready_ns) / max(1, sum(c.size_bytes for c in ordered[1:]))
    before = max(0.0, ordered[0].ready_ns - rate * ordered[0].size_bytes)
    gradients: list[Gradient] = []
    pieces = 16
    for bucket in ordered:
        for piece in range(1, pieces + 1):
            size = bucket.size_bytes * piece // pieces - bucket.size_bytes * (piece - 1) // pieces
            gradients.append(Gradient(ready_ns=before + (bucket.ready_ns - before) * piece / pieces, size_bytes=size))
        before = bucket.ready_ns
    return tuple(gradients)
