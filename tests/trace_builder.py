"""Synthetic traces with planted truth. The interface for tests:

    job = build(shape="ddp", world=8, steps=4, late={6: 300_000}, late_kind="launch")
    folder = write_job(job, tmp_path / "job")            # rank-0.json ... in Kineto's layout
    write_job(job, folder, layout="compact", ending=".json.gz", name="worker{}".format)
    rank_text(job, 3)                                    # one file's text
    job.truth[3].exposed_comm_ns, job.truth[3].idle_by_cause_ns["data"]
    job.collectives[0].waiting_ns(3), .transfer_ns, .last_rank, .skew_ns, .size_bytes

``shape``: "ddp" (one bucket a layer, reduced under the backward pass; ``overlap`` False: waited for at once), "naive" (all
of them after it), "fsdp"
(all_gather before each layer in both passes, reduce_scatter after its backward), "tensor" (all_reduce that is waited
for, per layer, both passes, in groups of ``tensor_size``), "pipeline" (GPipe: send_recv between neighbours; ``layers``
counts micro batches).
``late``: rank -> ns that it needs more in every step, as ``late_kind``: "compute" (longer kernels), "launch" (a host
slower than its kernels), "data" (a slow loader), "sync" (the host waits for the device before the backward pass, then
does something else). "launch", "data" and ``sync=True`` make every rank's host wait for its device at the end of a
step: otherwise it runs ahead and is never late.
``clocks``: rank -> Clock(offset_ns, drift_ppm): the rank's file shows its own clock. ``capture``: rank -> (first, stop)
steps that it recorded. ``device``: "gpu", or "gloo" for a CPU job without kernels. ``generation``: see trace_layout.
``nccl_args``, ``sequence``: whether kernels name their collective, and its number.

``job.truth[rank]`` is counted from the written events, on the rank's own clock, by a sweep that shares no code with
stepscope. ``job.collectives`` is in true time. Idle causes: "launch" (the host was late, busy with launching),
"data", "sync" (it was late because it had waited for that), "kernel_gap" (the device was free for another reason).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trace_layout import Planted, distributed_info, text, write
from tests.trace_machine import (
    AUTOGRAD,
    COMPUTE_STREAM,
    DEVICE_CATS,
    HOST,
    ITEM_BYTES,
    RUNLOOP,
    Costs,
    Machine,
    Meeting,
    Span,
    Truth,
    Waiting,
    run_all,
    truth_of,
)

EPOCH_NS = {
    "relative": 4_203_669_000_000_000,
    "lines": 4_373_438_000_000_000,
    "absolute": 1_712_195_495_000_000_000,
    "whole": 1_694_128_201_000_000_000,
}
FIRST_STEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A rank's clock: shows true time + offset + drift * (time since the job's start)."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to build; see the module's docstring. Times are per layer where a layer has them."""

    shape: str = "ddp"
    world: int = 2
    steps: int = 3
    layers: int = 4
    forward_ns: int = 100_000
    backward_ns: int = 200_000
    optimizer_ns: int = 50_000
    transfer_ns: int = 150_000
    elements: int = 1 << 18  # of every collective's tensor
    launch_ns: int = 4_000
    kernel_gap_ns: int = 0
    data_ns: int = 0
    copy_ns: int = 20_000
    sync: bool = False
    overlap: bool = True
    memory: bool = False
    late: dict[int, int] = field(default_factory=dict)
    late_kind: str = "compute"
    clocks: dict[int, Clock] = field(default_factory=dict)
    capture: dict[int, tuple[int, int]] = field(default_factory=dict)
    generation: str = "relative"
    device: str = "gpu"
    nccl_args: bool = True
    sequence: bool = True
    tensor_size: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One planted collective in true time. All its ranks leave it together, at ``end_ns``."""

    op: str
    group: str
    sequence: int
    step: int
    starts_ns: dict[int, int]  # by rank
    end_ns: int
    transfer_ns: int
    size_bytes: int

    def waiting_ns(self, rank: int) -> int:
        return max(self.starts_ns.values()) - self.starts_ns[rank]

    @property
    def skew_ns(self) -> int:
        return max(self.starts_ns.values()) - min(self.starts_ns.values())

    @property
    def last_rank(self) -> int:
        return max(self.starts_ns, key=lambda r: self.starts_ns[r])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A built job: every rank's events, and what is true of them."""

    plan: Plan
    events: dict[int, list[Planted]]
    truth: dict[int, Truth]
    collectives: list[Collective]
    groups: dict[str, tuple[int, ...]]


def build(**plan: Any) -> Job:
    """Simulate a job; the arguments are Plan's fields."""
    return build_plan(Plan(**plan))


def build_plan(plan: Plan) -> Job:
    """As ``build``."""
    groups = _groups(plan)
    epoch = EPOCH_NS[plan.generation]
    costs = Costs(
        launch_ns=plan.launch_ns, kernel_gap_ns=plan.kernel_gap_ns, transfer_ns=plan.transfer_ns,
        elements=plan.elements, gloo=plan.device == "gloo", old_names=plan.generation == "whole",
        nccl_args=plan.nccl_args, sequence=plan.sequence,
    )  # fmt: skip
    meetings: dict[tuple[str, int], Meeting] = {}
    machines = [Machine(r, costs, groups, meetings, epoch) for r in range(plan.world)]
    run_all([_program(m, plan) for m in machines])
    for machine in machines:
        machine.finish()
    events, truth = {}, {}
    for machine in machines:
        spans, planted = _written(machine, plan, epoch)
        events[machine.rank] = planted
        truth[machine.rank] = truth_of(spans)
    return Job(
        plan=plan,
        events=events,
        truth=truth,
        collectives=[_collective(m, plan) for m in meetings.values()],
        groups=groups,
    )


def rank_text(job: Job, rank: int, *, layout: str = "kineto") -> str:
    """One rank's file as text."""
    groups = {name: ranks for name, ranks in job.groups.items() if rank in ranks}
    backend = "gloo" if job.plan.device == "gloo" else "nccl"
    info = distributed_info(rank, job.plan.world, backend=backend, groups=groups)
    header = {"deviceProperties": [], "distributedInfo": info, "record_shapes": 1}
    return text(job.events[rank], header=header, layout=layout, generation=job.plan.generation)


def write_job(
    job: Job,
    folder: Path,
    *,
    layout: str = "kineto",
    ending: str = ".json",
    name: Callable[[int], str] = "rank-{}".format,
) -> Path:
    """Write every rank's file into the folder, packed by ``ending``; returns the folder."""
    for rank in job.events:
        write(folder / f"{name(rank)}{ending}", rank_text(job, rank, layout=layout))
    return folder


def _groups(plan: Plan) -> dict[str, tuple[int, ...]]:
    if plan.shape == "pipeline":
        return {f"pp{r}": (r, r + 1) for r in range(plan.world - 1)}
    if plan.shape == "tensor":
        size = plan.tensor_size
        return {f"tp{r}": tuple(range(r, r + size)) for r in range(0, plan.world, size)}
    return {"0": tuple(range(plan.world))}


def _program(machine: Machine, plan: Plan) -> Waiting:
    passes = {"ddp": _ddp, "naive": _naive, "fsdp": _fsdp, "tensor": _tensor, "pipeline": _pipeline}[plan.shape]
    late = plan.late.get(machine.rank, 0)
    settles = plan.sync or plan.late_kind in ("launch", "data")
    for step in range(FIRST_STEP, FIRST_STEP + plan.steps):
        machine.step = step
        begin = machine.host
        loading = plan.data_ns + (late if plan.late_kind == "data" else 0)
        machine.busy("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", loading, cause="data")
        machine.copy(plan.copy_ns)
        if late and plan.late_kind == "launch":
            machine.extra_launch = (plan.forward_ns + late // plan.layers) // 1000 * 1000
        yield from passes(machine, plan, late)
        machine.thread = HOST
        optimizer = machine.host
        machine.compute("sgd", plan.optimizer_ns)
        machine.annotate("Optimizer.step#SGD.step", optimizer)
        if settles:
            machine.sync()
        machine.annotate(f"ProfilerStep#{step}", begin)


def _forward_layer(machine: Machine, plan: Plan, layer: int) -> None:
    if plan.memory:
        machine.allocate(1 << 20)
    machine.compute("mm", plan.forward_ns, number=machine.step * 1000 + layer)


def _backward_layer(machine: Machine, plan: Plan, layer: int, late: int) -> None:
    """The first one of a step carries what the rank is late."""
    first = layer == plan.layers - 1
    if first:
        machine.extra_launch = 0
        if late and plan.late_kind == "sync":
            machine.sync()
            machine.busy("", late, cause="sync")
        machine.thread = AUTOGRAD
    more = late if first and plan.late_kind == "compute" else 0
    machine.compute("mm_backward", plan.backward_ns + more, number=machine.step * 1000 + layer)
    if plan.memory:
        machine.allocate(-(1 << 20))


def _ddp(machine: Machine, plan: Plan, late: int) -> Waiting:
    for layer in range(plan.layers):
        _forward_layer(machine, plan, layer)
    reduced = 0
    for layer in reversed(range(plan.layers)):
        _backward_layer(machine, plan, layer, late)
        reduced = yield from machine.collective("all_reduce", "0")
        if not plan.overlap:
            yield from machine.wait("0", reduced)
    yield from machine.wait("0", reduced)


def _naive(machine: Machine, plan: Plan, late: int) -> Waiting:
    """The whole backward pass, then one reduction after the other, each waited for."""
    for layer in range(plan.layers):
        _forward_layer(machine, plan, layer)
    for layer in reversed(range(plan.layers)):
        _backward_layer(machine, plan, layer, late)
    machine.thread = HOST
    for _ in range(plan.layers):
        yield from machine.wait("0", (yield from machine.collective("all_reduce", "0")))


def _fsdp(machine: Machine, plan: Plan, late: int) -> Waiting:
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
                _backward_layer(machine, plan, layer, late)
                last = yield from machine.collective("reduce_scatter", "0")
            else:
                _forward_layer(machine, plan, layer)
            if more and not plan.overlap:
                gathered = yield from machine.collective("all_gather", "0")
    yield from machine.wait("0", last)


def _tensor(machine: Machine, plan: Plan, late: int) -> Waiting:
    group = f"tp{machine.rank // plan.tensor_size * plan.tensor_size}"
    for layer in range(plan.layers):
        _forward_layer(machine, plan, layer)
        yield from machine.wait(group, (yield from machine.collective("all_reduce", group)))
    for layer in reversed(range(plan.layers)):
        _backward_layer(machine, plan, layer, late)
        yield from machine.wait(group, (yield from machine.collective("all_reduce", group)))


def _pipeline(machine: Machine, plan: Plan, late: int) -> Waiting:
    before = f"pp{machine.rank - 1}" if machine.rank else None
    after = f"pp{machine.rank}" if machine.rank < plan.world - 1 else None
    for batch in range(plan.layers):
        if before:
            yield from machine.wait(before, (yield from machine.collective("send_recv", before)))
        _forward_layer(machine, plan, batch)
        if after:
            yield from machine.collective("send_recv", after)
    for batch in reversed(range(plan.layers)):
        if after:
            yield from machine.wait(after, (yield from machine.collective("send_recv", after)))
        _backward_layer(machine, plan, batch, late)
        if before:
            yield from machine.collective("send_recv", before)


def _collective(meeting: Meeting, plan: Plan) -> Collective:
    assert meeting.end is not None
    return Collective(
        op=meeting.op, group=meeting.group, sequence=meeting.sequence, step=meeting.step,
        starts_ns=dict(sorted(meeting.starts.items())), end_ns=meeting.end, transfer_ns=meeting.transfer,
        size_bytes=plan.elements * ITEM_BYTES,
    )  # fmt: skip


def _written(machine: Machine, plan: Plan, epoch: int) -> tuple[list[Span], list[Planted]]:
    """The rank's spans on its own clock, and all events of its file."""
    clock = plan.clocks.get(machine.rank, Clock())

    def shown(true_ns: int) -> int:
        return true_ns + clock.offset_ns + round((true_ns - epoch) * clock.drift_ppm / 1e6)

    first, stop = plan.capture.get(machine.rank, (0, plan.steps))
    steps = range(FIRST_STEP + first, FIRST_STEP + stop)
    kept = sorted((s for s in machine.spans if s.step in steps), key=lambda s: s.start)
    events = []
    for span in kept:
        span.start, span.end = shown(span.start), shown(span.end)
        on_device = span.cat in (*DEVICE_CATS, "cuda_sync")
        pid = 0 if on_device else HOST
        events.append(
            Planted(
                cat=span.cat,
                name=span.name,
                ts_ns=span.start,
                dur_ns=span.end - span.start,
                pid=pid,
                tid=span.tid,
                args=span.args,
            )
        )
        link = span.args.get("correlation", 0)
        if link and span.cat != "cuda_sync":
            ph = "f" if on_device else "s"
            events.append(
                Planted(cat="ac2g", name="ac2g", ts_ns=span.start, pid=pid, tid=span.tid, ph=ph, flow_id=link)
            )
    total = 0
    for at, size, step in machine.memory:
        total += size
        if step in steps:
            args = {
                "Total Reserved": 1 << 30, "Total Allocated": total, "Bytes": size, "Addr": 1 << 20,
                "Device Id": 0, "Device Type": 1, "Ev Idx": len(events),
            }  # fmt: skip
            events.append(
                Planted(cat="cpu_instant_event", name="[memory]", ts_ns=shown(at), ph="i", tid=HOST, args=args)
            )
    if kept:
        low, high = min(s.start for s in kept), max(s.end for s in kept)
        events.append(
            Planted(
                cat="Trace",
                name="PyTorch Profiler (0)",
                ts_ns=low,
                dur_ns=high - low,
                pid="Spans",
                tid="PyTorch Profiler",
                args={"Op count": 0},
            )
        )
    for tid, label in ((HOST, "thread 100 (python)"), (AUTOGRAD, "thread 200 (pt_autograd_0)"),
                       (RUNLOOP, "thread 300 (pt_gloo_runloop)")):  # fmt: skip
        events.append(_thread_name(HOST, tid, label, epoch))
    events.append(_thread_name(0, COMPUTE_STREAM, f"stream {COMPUTE_STREAM} ", epoch))
    return kept, events


def _thread_name(pid: int, tid: int, label: str, at: int) -> Planted:
    return Planted(cat="", name="thread_name", ts_ns=at, pid=pid, tid=tid, ph="M", args={"name": label})
