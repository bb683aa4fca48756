"""A simulated data-parallel training job: every rank's profiler events, and the truth about its collectives.

Events as libkineto writes them: the text of a trace file, of four generations.

"relative"   us with 3 decimals since ``baseTimeNanoseconds``; one line a group of fields (2024)
"lines"      the same, every field on a line of its own, metadata events first (torch 2.13)
"absolute"   us with 3 decimals since 1970: too many digits for a float
"whole"      whole us since 1970, capitalised categories: ``Kernel``, ``Operator`` (2021)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from stepscope.core.dataclass import record
from stepscope.examples.machine import (
    AUTOGRAD,
    COMPUTE_STREAM,
    DEVICE_CATS,
    HOST,
    ITEM_BYTES,
    RUNLOOP,
    Costs,
    Meeting,
    Operator,
    SimulatedRank,
    Span,
    Waiting,
    run_all,
)

BASE_TIME_NS = 1_735_632_360_000_000_000

_CAPITALISED = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
}  # fmt: skip


@record
class Planted:
    """One event. ``dur_ns`` None: an instant (ph i). Flow and metadata events: ``ph`` s, f or M, ``flow_id``."""

    cat: str
    name: str
    ts_ns: int
    dur_ns: int | None = None
    pid: int | str = 100
    tid: int | str = 100
    ph: str = "X"
    flow_id: int = 0
    args: dict[str, Any] = field(default_factory=dict)


def distributed_info(rank: int, world: int, *, backend: str, groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The ``distributedInfo`` of a header; ``groups`` maps a group's name to its ranks."""
    config = [
        {"pg_name": name, "pg_desc": "default_pg" if name == "0" else f"mesh_{name}",
         "backend_config": f"cuda:{backend}", "pg_size": len(ranks), "ranks": list(ranks)}
        for name, ranks in groups.items()
    ]  # fmt: skip
    return {"backend": backend, "rank": rank, "world_size": world, "pg_count": len(config), "pg_config": config}


def trace_text(events: Sequence[Planted], header: Mapping[str, Any], *, generation: str = "relative") -> str:
    """The text of one trace file; ``header`` holds what stands beside the events."""
    header = {"schemaVersion": 1, **header}
    if generation in ("relative", "lines"):
        header["baseTimeNanoseconds"] = BASE_TIME_NS
    lines = generation == "lines"
    metadata = [e for e in events if e.ph == "M"]
    rest = [e for e in events if e.ph != "M"]
    ordered = [*metadata, *rest] if lines else [*rest, *metadata]
    head = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in header.items())
    body = ",\n".join(_event_text(e, generation) for e in ordered)
    if lines:
        return f' {{\n{head}  "traceEvents": [\n    \n{body}\n  ],"traceName": "trace.json" }}'
    return f'\n{{\n{head}  "traceEvents": [\n{body}\n  ],\n  "traceName": "trace.json"\n}}\n'


def _event_text(event: Planted, generation: str) -> str:
    """Write one event as Kineto does. generation: which torch's spelling."""
    new_line = ",\n    " if generation == "lines" else ", "
    name, pid, tid = _json_text(event.name), _json_text(event.pid), _json_text(event.tid)
    place = f'"pid": {pid}{new_line}"tid": {tid}'
    time = f'"ts": {_time_text(event.ts_ns, generation)}'
    args = ", ".join(f'"{key}": {_json_text(value)}' for key, value in event.args.items())
    args = f',\n    "args": {{\n      {args}\n    }}'
    cat = _CAPITALISED.get(event.cat, event.cat) if generation == "whole" else event.cat
    if event.ph == "M":
        fields = new_line.join([f'"name": {name}', '"ph": "M"', time, place]) + args
    elif event.ph in "sf":
        end = ', "bp": "e"' if event.ph == "f" else ""
        kind = new_line.join([f'"ph": "{event.ph}"', f'"id": {event.flow_id}', place, time])
        fields = f'{kind},\n    "cat": "{cat}"{new_line}"name": {name}{end}'
    elif event.ph == "i" or event.dur_ns is None:
        kind = new_line.join(['"ph": "i"', f'"cat": "{cat}"', '"s": "t"', f'"name": {name}'])
        fields = f"{kind},\n    {place},\n    {time}{args}"
    elif cat == "Trace" and generation != "lines":
        duration = f'"dur": {_time_text(event.dur_ns, generation)}'
        fields = f'"ph": "X", "cat": "Trace", {time}, {duration},\n    {place},\n    "name": {name}{args}'
    else:
        duration = f'"dur": {_time_text(event.dur_ns, generation)}'
        kind = new_line.join(['"ph": "X"', f'"cat": "{cat}"', f'"name": {name}', place])
        fields = f"{kind},\n    {time}{new_line}{duration}{args}"
    return f"  {{\n    {fields}\n  }}"


def _json_text(value: Any) -> str:
    """Return what ``json.dumps`` would, which called for each number takes most of the time to write a trace."""
    if type(value) is int:
        return str(value)
    return _quoted_json(value) if isinstance(value, str) else json.dumps(value)


@lru_cache(maxsize=4096)
def _quoted_json(text: str) -> str:
    return json.dumps(text)


def _time_text(ns: int, generation: str) -> str:
    if generation == "whole":
        if ns % 1000:
            raise ValueError(f"{ns} ns cannot be written in whole microseconds")
        return str(ns // 1000)
    return f"{ns // 1000}.{ns % 1000:03d}"


EPOCH_NS = {
    "relative": 4_203_669_000_000_000,
    "lines": 4_373_438_000_000_000,
    "absolute": 1_712_195_495_000_000_000,
    "whole": 1_694_128_201_000_000_000,
}
FIRST_STEP = 10


def _plain_operator(name: str) -> Operator:
    return Operator(name=f"aten::{name}", kernel=f"void {name}_kernel<float, 4>(float*, float*)")


_SGD = _plain_operator("sgd")


@record
class Clock:
    """A rank's clock: shows true time + offset + drift * (time since the job's start)."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@record
class Simulation:
    """What to simulate. Times are per layer where a layer has them.

    shape: a key of the programs. layers: micro batches of a pipeline. overlap: reductions run under the backward pass.
    late: rank -> ns that it needs more in every step, as ``late_kind``: "compute" (one longer kernel), "launch" (a host
    slower than its kernels), "data" (a slow loader), "sync" (before the backward pass the host waits for the device, in
    a call that returns that much later), "python" (it waits for it, and then does something else). "launch", "data" and
    ``sync`` make every rank's host wait for its device at the end of a step: otherwise it runs ahead and is never late.
    slow: rank -> how many times as long all its computation takes. clocks: rank -> what its clock shows. capture: rank ->
    (first, stop) steps that it recorded. generation: of the trace's text (examples/kineto.py). device: "gpu", or "gloo"
    for a CPU job without kernels; gpu: the device's name; gpu_bytes: its memory.
    nccl_args, sequence: whether kernels name their collective, and its number. jitter: durations vary by this share.
    """

    shape: str = "ddp"
    world: int = 2
    steps: int = 3
    layers: int = 4
    forward_ns: int = 100_000
    backward_ns: int = 200_000
    optimizer_ns: int = 50_000
    transfer_ns: int = 150_000
    elements: int = 1 << 18  # of every collective's tensor
    dtype: str = "Float"
    forward: tuple[Operator, ...] = (_plain_operator("mm"),)
    backward: tuple[Operator, ...] = (_plain_operator("mm_backward"),)
    optimizer: Operator = _SGD
    launch_ns: int = 4_000
    kernel_gap_ns: int = 0
    data_ns: int = 0
    copy_ns: int = 20_000
    sync: bool = False
    overlap: bool = True
    memory: bool = False
    late: dict[int, int] = field(default_factory=dict)
    late_kind: str = "compute"
    slow: dict[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    clocks: dict[int, Clock] = field(default_factory=dict)
    capture: dict[int, tuple[int, int]] = field(default_factory=dict)
    generation: str = "relative"
    device: str = "gpu"
    gpu: str = ""
    gpu_bytes: int = 0
    nccl_args: bool = True
    sequence: bool = True


@record
class PlantedCollective:
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


@record
class SimulatedJob:
    """A simulated job: every rank's spans (on its own clock) and the events of its file."""

    plan: Simulation
    spans: dict[int, list[Span]]
    events: dict[int, list[Planted]]
    collectives: list[PlantedCollective]
    groups: Mapping[str, tuple[int, ...]]

    def rank_text(self, rank: int) -> str:
        """The text of one rank's trace file."""
        plan = self.plan
        groups = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        info = distributed_info(rank, plan.world, backend="gloo" if plan.device == "gloo" else "nccl", groups=groups)
        memory = {"totalGlobalMem": plan.gpu_bytes} if plan.gpu_bytes else {}
        devices = [{"id": 0, "name": plan.gpu, **memory}] if plan.gpu or memory else []
        header = {"deviceProperties": devices, "distributedInfo": info, "record_shapes": 1}
        return trace_text(self.events[rank], header, generation=plan.generation)


Program = Callable[[SimulatedRank, Simulation, int], Waiting]
"""A step's forward and backward passes on a rank that is late by so many ns."""


def simulate(
    plan: Simulation,
    *,
    programs: Mapping[str, Program] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> SimulatedJob:
    """Run the plan. ``programs``: by shape, beside "ddp" and "naive"; ``groups``: process groups by name."""
    groups = groups or {"0": tuple(range(plan.world))}
    passes = {"ddp": _run_ddp, "naive": _run_naive, **(programs or {})}[plan.shape]
    epoch = EPOCH_NS[plan.generation]
    costs = Costs(
        launch_ns=plan.launch_ns, kernel_gap_ns=plan.kernel_gap_ns, transfer_ns=plan.transfer_ns,
        elements=plan.elements, gloo=plan.device == "gloo", old_names=plan.generation == "whole",
        nccl_args=plan.nccl_args, sequence=plan.sequence, dtype=plan.dtype, jitter=plan.jitter,
    )  # fmt: skip
    meetings: dict[tuple[str, int], Meeting] = {}
    machines = [SimulatedRank(r, costs, groups, meetings, epoch, plan.slow.get(r, 1.0)) for r in range(plan.world)]
    run_all([_run_steps(m, plan, passes) for m in machines])
    for machine in machines:
        machine.finish()
    written = {machine.rank: _spans_and_events(machine, plan, epoch) for machine in machines}
    return SimulatedJob(
        plan=plan,
        spans={rank: spans for rank, (spans, _) in written.items()},
        events={rank: events for rank, (_, events) in written.items()},
        collectives=[_planted_collective(m, plan) for m in meetings.values()],
        groups=groups,
    )


def _run_steps(machine: SimulatedRank, plan: Simulation, passes: Program) -> Waiting:
    """Run the steps of a rank; yield where it waits for others."""
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
        machine.compute(plan.optimizer, plan.optimizer_ns)
        machine.annotate("Optimizer.step#SGD.step", optimizer)
        if settles:
            machine.sync()
        machine.annotate(f"ProfilerStep#{step}", begin)


def forward_layer(machine: SimulatedRank, plan: Simulation, layer: int) -> None:
    if plan.memory:
        machine.allocate(1 << 20)
    for operator in plan.forward:
        machine.compute(operator, plan.forward_ns, number=machine.step * 1000 + layer)


def backward_layer(machine: SimulatedRank, plan: Simulation, layer: int, late: int) -> None:
    """Run a layer's backward pass; the first one of a step carries what the rank is late."""
    first = layer == plan.layers - 1
    if first:
        machine.extra_launch = 0
        if late and plan.late_kind == "sync":
            machine.sync(late)
        if late and plan.late_kind == "python":
            machine.sync()
            machine.busy("", late, cause="launch")
        machine.thread = AUTOGRAD
    more = late if first and plan.late_kind == "compute" else 0
    for operator in plan.backward:
        machine.compute(operator, plan.backward_ns + more, number=machine.step * 1000 + layer)
    if plan.memory:
        machine.allocate(-(1 << 20))


def _run_ddp(machine: SimulatedRank, plan: Simulation, late: int) -> Waiting:
    """Run a step of DDP: buckets are reduced while the backward pass goes on."""
    forward = machine.host
    for layer in range(plan.layers):
        forward_layer(machine, plan, layer)
    machine.annotate("DistributedDataParallel.forward", forward)
    reduced = 0
    for layer in reversed(range(plan.layers)):
        backward_layer(machine, plan, layer, late)
        reduced = yield from machine.collective("all_reduce", "0")
        if not plan.overlap:
            yield from machine.wait("0", reduced)
    yield from machine.wait("0", reduced)


def _run_naive(machine: SimulatedRank, plan: Simulation, late: int) -> Waiting:
    """Run the whole backward pass, then one reduction after the other, each waited for."""
    for layer in range(plan.layers):
        forward_layer(machine, plan, layer)
    for layer in reversed(range(plan.layers)):
        backward_layer(machine, plan, layer, late)
    machine.thread = HOST
    for _ in range(plan.layers):
        yield from machine.wait("0", (yield from machine.collective("all_reduce", "0")))


def _planted_collective(meeting: Meeting, plan: Simulation) -> PlantedCollective:
    """Return a collective as what the trace should show."""
    assert meeting.end is not None
    return PlantedCollective(
        op=meeting.op, group=meeting.group, sequence=meeting.sequence, step=meeting.step,
        starts_ns=dict(sorted(meeting.starts.items())), end_ns=meeting.end, transfer_ns=meeting.transfer,
        size_bytes=meeting.elements * ITEM_BYTES[plan.dtype],
    )  # fmt: skip


def _spans_and_events(machine: SimulatedRank, plan: Simulation, epoch: int) -> tuple[list[Span], list[Planted]]:
    """Return the rank's spans on its own clock, and all events of its file."""
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
                "Device Id": 0, "Device Type": int(plan.device != "gloo"), "Ev Idx": len(events),
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
