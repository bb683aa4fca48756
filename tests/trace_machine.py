"""The simulator behind tests/trace_builder.py: hosts, devices, and collectives that all ranks leave together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOST, AUTOGRAD, RUNLOOP, COMPUTE_STREAM = 100, 200, 300, 7
ITEM_BYTES = 4
DEVICE_CATS = ("kernel", "gpu_memcpy")
_KERNELS = {
    "all_reduce": "AllReduce_Sum_f32_RING_LL", "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_f32_RING_LL", "send_recv": "SendRecv",
}  # fmt: skip
_NCCL_NAMES = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "send_recv": "send",
}  # fmt: skip
_GLOO_LAUNCHES = {
    "all_reduce": "c10d::allreduce_", "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_", "send_recv": "c10d::send",
}  # fmt: skip
# gloo reduces and scatters with its all_reduce, and its span says so.
_GLOO_SPANS = {"reduce_scatter": "gloo:all_reduce", "send_recv": "gloo:send"}

Waiting = Generator[None, None, None]
Entering = Generator[None, None, int]
"""What a rank does; it yields where it waits for other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What everything takes on every rank, in ns unless named otherwise."""

    launch_ns: int
    kernel_gap_ns: int
    transfer_ns: int
    elements: int
    gloo: bool
    old_names: bool
    nccl_args: bool
    sequence: bool


@dataclass(slots=True, kw_only=True)
class Span:
    """An event in true time. ``cause``: why a device event did not start earlier; ``work``: what it counts as."""

    cat: str
    name: str
    start: int
    end: int
    tid: int
    args: dict[str, Any]
    step: int
    cause: str = ""
    work: str = ""


@dataclass(slots=True, kw_only=True)
class Meeting:
    """A collective while its ranks arrive."""

    op: str
    group: str
    sequence: int
    step: int
    transfer: int
    starts: dict[int, int] = field(default_factory=dict)
    end: int | None = None


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


class Machine:
    """One rank. Every method takes its host's time on and records what a profiler would see."""

    def __init__(
        self,
        rank: int,
        costs: Costs,
        groups: Mapping[str, Sequence[int]],
        meetings: dict[tuple[str, int], Meeting],
        epoch: int,
    ) -> None:
        self.rank, self.costs, self.groups, self.meetings = rank, costs, groups, meetings
        self.host = self.compute_free = epoch
        self.spans: list[Span] = []
        self.memory: list[tuple[int, int, int]] = []  # time, bytes, step
        self.step = 0
        self.thread = HOST
        self.extra_launch = 0
        self._cause = "launch"
        self._last: dict[str, int] = {}  # sequence number of each group's last collective
        self._open: list[tuple[Meeting, Span]] = []
        self._ids = 0

    def compute(self, name: str, dur: int, *, number: int = 0) -> None:
        """One operator with one kernel; on gloo an operator that computes itself."""
        if self.costs.gloo:
            self._op(f"aten::{name}", dur, number=number, work="compute")
            return
        self._run("kernel", f"void {name}_kernel<float, 4>(float*, float*)", dur, self._launch(f"aten::{name}"))

    def copy(self, dur: int) -> None:
        """A copy from pinned host memory, on the compute stream."""
        if dur and not self.costs.gloo:
            links = {**self._launch("aten::copy_", call="cudaMemcpyAsync"), "bytes": 1 << 20}
            self._run("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", dur, links)

    def collective(self, op: str, group: str) -> Entering:
        """Enter a collective, on the group's own stream, once all compute so far is done; its number in the group."""
        yield from self._until_left(group)
        sequence = self._last.get(group, 0) + 1
        before = self.meetings.get((group, sequence - 1))
        meeting = self.meetings.setdefault(
            (group, sequence),
            Meeting(op=op, group=group, sequence=sequence, step=self.step, transfer=self.costs.transfer_ns),
        )
        self._last[group] = sequence
        links = self._launch(_GLOO_LAUNCHES[op] if self.costs.gloo else "record_param_comms")
        free = before.end if before is not None and before.end is not None else 0
        start = max(self.host, free, 0 if self.costs.gloo else self.compute_free)
        meeting.starts[self.rank] = start
        if len(meeting.starts) == len(self.groups[group]):
            meeting.end = max(meeting.starts.values()) + meeting.transfer
        stream = RUNLOOP if self.costs.gloo else 20 + list(self.groups).index(group)
        span = Span(
            cat="user_annotation" if self.costs.gloo else "kernel",
            name=self._collective_name(op), start=start, end=start, tid=stream,
            args=links | self._collective_args(op, meeting, stream), step=self.step,
            cause=self._cause if start == self.host else "kernel_gap", work="comm",
        )  # fmt: skip
        self._cause = "launch"
        self.spans.append(span)
        self._open.append((meeting, span))
        return sequence

    def wait(self, group: str, sequence: int) -> Waiting:
        """Let later compute (on gloo: the host) start after this collective of the group."""
        meeting = self.meetings[group, sequence]
        while meeting.end is None:
            yield
        if self.costs.gloo:
            self.host = max(self.host, meeting.end)
        else:
            self.compute_free = max(self.compute_free, meeting.end)

    def busy(self, name: str, dur: int, *, cause: str) -> None:
        """The host does something else under an annotation of this name (none: nothing is recorded)."""
        if dur and name:
            self._record("user_annotation", name, self.host, self.host + dur, {})
        if dur:
            self._cause = cause
        self.host += dur

    def sync(self) -> None:
        """The host waits for the compute stream."""
        if self.costs.gloo:
            return
        end = max(self.host, self.compute_free) + self.costs.launch_ns
        self._ids += 1
        links = {"External id": self._ids, "cbid": 165, "correlation": self._ids}
        self._record("cuda_runtime", "cudaDeviceSynchronize", self.host, end, links)
        waiting = {"cuda_sync_kind": "Context Sync", "stream": 4294967295, "device": 0, "context": 1, **links}
        self._record("cuda_sync", "Context Sync", self.host, end, waiting, tid=-1)
        self.host, self._cause = end, "sync"

    def annotate(self, name: str, start: int) -> None:
        """An annotation of the user's from ``start`` to now."""
        self._record("user_annotation", name, start, self.host, {}, tid=HOST)

    def allocate(self, size: int) -> None:
        """Memory taken (bytes > 0) or given back (bytes < 0) now."""
        self.memory.append((self.host, size, self.step))

    def finish(self) -> None:
        """Fill in when the collectives ended, once all ranks have run."""
        for meeting, span in self._open:
            if meeting.end is None:
                raise RuntimeError(f"not all of {self.groups[meeting.group]} entered {meeting}")
            span.end = meeting.end

    def _until_left(self, group: str) -> Waiting:
        last = self.meetings.get((group, self._last.get(group, 0)))
        while last is not None and last.end is None:
            yield

    def _run(self, cat: str, name: str, dur: int, links: dict[str, Any]) -> None:
        ready = self.compute_free + self.costs.kernel_gap_ns
        start = max(ready, self.host)
        self.spans.append(
            Span(
                cat=cat,
                name=name,
                start=start,
                end=start + dur,
                tid=COMPUTE_STREAM,
                args={**links, "stream": COMPUTE_STREAM},
                step=self.step,
                cause=self._cause if start > ready else "kernel_gap",
                work="memory" if cat == "gpu_memcpy" else "compute",
            )
        )
        self.compute_free, self._cause = start + dur, "launch"

    def _launch(self, op: str, *, call: str = "cudaLaunchKernel") -> dict[str, Any]:
        """An operator that launches something; what links the launched to it."""
        dur = self.costs.launch_ns + self.extra_launch
        start = self.host
        self._op(op, dur)
        if self.costs.gloo:
            return {"External id": self._ids + 1_000_000, "Record function id": self._ids + 1}
        edge = dur // 4000 * 1000
        links = {"External id": self._ids, "correlation": self._ids}
        self._record("cuda_runtime", call, start + edge, self.host - edge, {"cbid": 211, **links})
        return {"device": 0, "context": 1, **links}

    def _op(self, name: str, dur: int, *, number: int = 0, work: str = "") -> None:
        self._ids += 2  # gloo's span takes the number between: launch + 1
        dims = [[[self.costs.elements]]] if name.startswith("c10d::") else [[64, 64], [64, 64]]
        types = ["TensorList"] if name.startswith("c10d::") else ["float", "float"]
        backward = {"Fwd thread id": 1} if self.thread == AUTOGRAD else {}
        args = {
            "External id": self._ids, "Record function id": self._ids, "Sequence number": number, **backward,
            "Input type": types, "Input Dims": dims, "Ev Idx": len(self.spans),
        }  # fmt: skip
        self._record("cpu_op", name, self.host, self.host + dur, args, work=work)
        self.host += dur

    def _collective_name(self, op: str) -> str:
        if self.costs.gloo:
            return _GLOO_SPANS.get(op, f"gloo:{op}")
        if self.costs.old_names:
            return f"ncclKernel_{_KERNELS[op]}(ncclDevComm*, unsigned long, ncclWork*)"
        return f"ncclDevKernel_{_KERNELS[op]}(ncclDevKernelArgsStorage<4096ul>)"

    def _collective_args(self, op: str, meeting: Meeting, stream: int) -> dict[str, Any]:
        ranks, n = self.groups[meeting.group], self.costs.elements
        if self.costs.gloo:
            return {"Input type": ["float"], "Input Dims": [[n]], "Ev Idx": len(self.spans)}
        if not self.costs.nccl_args:
            return {"stream": stream}
        share = {"all_gather": (n // len(ranks), n), "reduce_scatter": (n, n // len(ranks))}.get(op, (n, n))
        number = {"Seq": meeting.sequence} if self.costs.sequence else {}
        return {
            "stream": stream, "Collective name": _NCCL_NAMES[op], "In msg nelems": share[0],
            "Out msg nelems": share[1], "Group size": len(ranks), "dtype": "Float", "In split size": "[]",
            "Out split size": "[]", "Process Group Name": meeting.group,
            "Process Group Description": "default_pg", "Process Group Ranks": str(list(ranks)), **number,
        }  # fmt: skip

    def _record(
        self, cat: str, name: str, start: int, end: int, args: dict[str, Any], *,
        tid: int | None = None, work: str = "",
    ) -> None:  # fmt: skip
        at = self.thread if tid is None else tid
        self.spans.append(Span(cat=cat, name=name, start=start, end=end, tid=at, args=args, step=self.step, work=work))


def run_all(programs: Sequence[Waiting]) -> None:
    """Run every rank's program to its end. Raises RuntimeError when ranks wait for each other forever."""
    left = list(programs)
    stalled = 0
    while left:
        waiting = [p for p in left if next(p, "ended") is None]
        stalled = stalled + 1 if len(waiting) == len(left) else 0
        if stalled > 10_000:
            raise RuntimeError("the ranks of this plan wait for each other")
        left = waiting


def truth_of(spans: list[Span]) -> Truth:
    """Walk over every start and end of the work, counting what runs in between."""
    work = [s for s in spans if s.work]
    changes = sorted([(s.start, 1, s) for s in work] + [(s.end, -1, s) for s in work], key=lambda c: c[:2])
    running: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    previous = changes[0][0] if changes else 0
    gap = 0
    for time, change, span in changes:
        length = time - previous
        on = frozenset(k for k, n in running.items() if n)
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
