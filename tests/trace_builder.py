"""Synthetic traces with planted truth. The interface for tests:

    job = build(shape="ddp", world=8, steps=4, late={6: 300_000}, late_kind="launch")
    folder = write_job(job, tmp_path / "job")            # rank-0.json ... in Kineto's layout
    write_job(job, folder, layout="compact", ending=".json.gz", name="worker{}".format)
    rank_text(job, 3)                                    # one file's text
    job.truth[3].exposed_comm_ns, job.truth[3].idle_by_cause_ns["data"]
    job.collectives[0].waiting_ns(3), .transfer_ns, .last_rank, .skew_ns, .size_bytes

The fields of Simulation and the shapes "ddp" and "naive" are those of stepscope.examples.training_job; here are more shapes.

``shape``: "ddp" (one bucket a layer, reduced under the backward pass; ``overlap`` False: waited for at once), "naive" (all
of them after it), "fsdp"
(all_gather before each layer in both passes, reduce_scatter after its backward), "tensor" (all_reduce that is waited
for, per layer, both passes, in groups of ``tensor_size``), "pipeline" (GPipe: send_recv between neighbours; ``layers``
counts micro batches).
``tensor_size``: ranks of a tensor group.

``job.truth[rank]`` is counted from the written events, on the rank's own clock, by a sweep that shares no code with
stepscope. ``job.collectives`` is in true time. Idle causes: "launch" (the host was late, busy with launching),
"data", "sync" (it was late because it had waited for that), "kernel_gap" (the device was free for another reason).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.trace_layout import rewritten, write

from stepscope.examples import training_job
from stepscope.examples.machine import DEVICE_CATS, SimulatedRank, Span, Waiting
from stepscope.examples.training_job import (
    Clock,
    PlantedCollective,
    Simulation,
    backward_layer,
    forward_layer,
    simulate,
)

__all__ = ["Clock", "Job", "Simulation", "build", "build_plan", "rank_text", "write_job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is true of one rank's file, as METRICS defines it. On gloo: operators and gloo spans."""

    window_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    overlap_ns: int
    exposed_comm_ns: int
    exposed_memory_ns: int
    busy_ns: int
    idle_ns: int
    idle_by_cause_ns: dict[str, int]
    steps: tuple[int, ...]
    device_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A built job, and what is true of every rank."""

    simulated: training_job.SimulatedJob
    truth: dict[int, Truth]

    @property
    def plan(self) -> Simulation:
        return self.simulated.plan

    @property
    def collectives(self) -> list[PlantedCollective]:
        return self.simulated.collectives


def build(*, tensor_size: int = 2, **plan: Any) -> Job:
    """Simulate a job; the arguments are fields of Simulation."""
    return build_plan(Simulation(**plan), tensor_size=tensor_size)


def build_plan(plan: Simulation, *, tensor_size: int = 2) -> Job:
    """As ``build``."""
    programs = {"fsdp": _fsdp, "tensor": partial(_tensor, size=tensor_size), "pipeline": gpipe}
    job = simulate(plan, programs=programs, groups=_groups(plan, tensor_size))
    return Job(simulated=job, truth={rank: truth_of(spans) for rank, spans in job.spans.items()})


def rank_text(job: Job, rank: int, *, layout: str = "kineto") -> str:
    """One rank's file as text."""
    text = job.simulated.rank_text(rank)
    return text if layout == "kineto" else rewritten(text, layout)


def write_job(
    job: Job,
    folder: Path,
    *,
    layout: str = "kineto",
    ending: str = ".json",
    name: Callable[[int], str] = "rank-{}".format,
) -> Path:
    """Write every rank's file into the folder, packed by ``ending``; returns the folder."""
    for rank in job.truth:
        write(folder / f"{name(rank)}{ending}", rank_text(job, rank, layout=layout))
    return folder


def _groups(plan: Simulation, size: int) -> dict[str, tuple[int, ...]]:
    if plan.shape == "pipeline":
        return {f"pp{r}": (r, r + 1) for r in range(plan.world - 1)}
    if plan.shape == "tensor":
        return {f"tp{r}": tuple(range(r, r + size)) for r in range(0, plan.world, size)}
    return {"0": tuple(range(plan.world))}


def _fsdp(machine: SimulatedRank, plan: Simulation, late: int) -> Waiting:
    """With ``overlap`` the next layer is gathered while this one computes."""
    layers = range(plan.layers)
    last = 0
    for order, backward in ((layers, False), (reversed(layers), True)):
        gathered = yield from machine.collective("all_gather", "0")
        for place, layer in enumerate(order):
            yield from machine.wait("0", gathered)
            more = place < plan.layers - 1
            if more and plan.overlap:
                gathered = yield from machine.collective("all_gather", "0")
            if backward:
                backward_layer(machine, plan, layer, late)
                last = yield from machine.collective("reduce_scatter", "0")
            else:
                forward_layer(machine, plan, layer)
            if more and not plan.overlap:
                gathered = yield from machine.collective("all_gather", "0")
    yield from machine.wait("0", last)


def _tensor(machine: SimulatedRank, plan: Simulation, late: int, *, size: int) -> Waiting:
    group = f"tp{machine.rank // size * size}"
    for layer in range(plan.layers):
        forward_layer(machine, plan, layer)
        yield from machine.wait(group, (yield from machine.collective("all_reduce", group)))
    for layer in reversed(range(plan.layers)):
        backward_layer(machine, plan, layer, late)
        yield from machine.wait(group, (yield from machine.collective("all_reduce", group)))


def gpipe(machine: SimulatedRank, plan: Simulation, late: int) -> Waiting:
    """``layers`` counts micro batches."""
    before = f"pp{machine.rank - 1}" if machine.rank else None
    after = f"pp{machine.rank}" if machine.rank < plan.world - 1 else None
    for batch in range(plan.layers):
        if before:
            yield from machine.wait(before, (yield from machine.collective("send_recv", before)))
        forward_layer(machine, plan, batch)
        if after:
            yield from machine.collective("send_recv", after)
    for batch in reversed(range(plan.layers)):
        if after:
            yield from machine.wait(after, (yield from machine.collective("send_recv", after)))
        backward_layer(machine, plan, batch, late)
        if before:
            yield from machine.collective("send_recv", before)


def truth_of(spans: list[Span]) -> Truth:
    """Walk over every start and end of the work, counting what runs in between; on gloo within the steps' marks."""
    work = [s for s in spans if s.work]
    marks = [s for s in spans if s.name.startswith("ProfilerStep#")]
    if marks and not any(s.cat in DEVICE_CATS for s in spans):
        low, high = min(s.start for s in marks), max(s.end for s in marks)
        clipped = [(s, max(s.start, low), min(s.end, high)) for s in work]
        work = [replace(s, start=start, end=end) for s, start, end in clipped if start < end]
        work += [Span(cat="", name="", start=at, end=at, tid=0, args={}, step=0, work="window") for at in (low, high)]
    changes = sorted([(s.start, 1, s) for s in work] + [(s.end, -1, s) for s in work], key=lambda c: c[:2])
    running: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    previous = changes[0][0] if changes else 0
    gap = 0
    for time, change, span in changes:
        length = time - previous
        on = frozenset(k for k, n in running.items() if n and k != "window")
        for kind in on:
            sums[kind] += length
        sums["busy"] += length if on else 0
        sums["overlap"] += length if {"compute", "comm"} <= on else 0
        sums["exposed_comm"] += length if "comm" in on and "compute" not in on else 0
        sums["exposed_memory"] += length if on == {"memory"} else 0
        gap += 0 if on else length
        if gap and change > 0:
            causes[span.cause if span.cat in DEVICE_CATS else ""] += gap
            gap = 0
        running[span.work] += change
        previous = time
    window = changes[-1][0] - changes[0][0] if changes else 0
    return Truth(
        window_ns=window, compute_ns=sums["compute"], comm_ns=sums["comm"], memory_ns=sums["memory"],
        overlap_ns=sums["overlap"], exposed_comm_ns=sums["exposed_comm"],
        exposed_memory_ns=sums["exposed_memory"], busy_ns=sums["busy"], idle_ns=window - sums["busy"],
        idle_by_cause_ns={k: n for k, n in causes.items() if k}, steps=tuple(sorted({s.step for s in spans})),
        device_events=sum(s.cat in DEVICE_CATS for s in spans),
    )  # fmt: skip
