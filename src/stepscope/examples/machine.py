"""A simulated rank: its host, its device, and collectives that all ranks leave together."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stepscope.core.dataclass import record

HOST, AUTOGRAD, RUNLOOP, COMPUTE_STREAM = 100, 200, 300, 7
ITEM_BYTES = {"Float": 4, "BFloat16": 2}
DEVICE_CATS = ("kernel", "gpu_memcpy")
_KERNELS = {
    "all_reduce": "AllReduce_Sum_{}_RING_LL", "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{}_RING_LL", "send_recv": "SendRecv", "all_to_all_v": "SendRecv",
}  # fmt: skip
_NCCL_NAMES = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "send_recv": "send", "all_to_all_v": "all_to_allv",
}  # fmt: skip
_GLOO_LAUNCHES = {
    "all_reduce": "c10d::allreduce_", "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_", "send_recv": "c10d::send", "all_to_all_v": "c10d::alltoall_base_",
}  # fmt: skip
# gloo reduces and scatters with its all_reduce, and its span says so.
_GLOO_SPANS = {"reduce_scatter": "gloo:all_reduce", "send_recv": "gloo:send"}

NESTED_NS = 500
"""An operator starts this long after the one that calls it."""

Waiting = Generator[None, None, None]
Entering = Generator[None, None, int]
"""A generator of what a rank does; it yields where it waits for other ranks."""


@record
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
    dtype: str
    jitter: float


@record
class Operator:
    """What the host calls, within ``parents`` (outermost first), and the kernel that it launches."""

    name: str
    kernel: str
    share: float = 1.0  # of the time of its layer
    dims: tuple[tuple[int, ...], ...] = ((64, 64), (64, 64))
    dtype: str = "float"
    parents: tuple[str, ...] = ()


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
    elements: int
    starts: dict[int, int] = field(default_factory=dict)
    end: int | None = None


class SimulatedRank:
    """One rank. Every method takes its host's time on and records what a profiler would see."""

    def __init__(
        self,
        rank: int,
        costs: Costs,
        groups: Mapping[str, Sequence[int]],
        meetings: dict[tuple[str, int], Meeting],
        epoch: int,
        slow: float = 1.0,
    ) -> None:
        """``slow``: how many times as long its computation takes."""
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
        self._slow = slow
        self._random = Random(rank)

    def compute(self, called: Operator, dur: int, *, number: int = 0) -> None:
        """One operator with one kernel; on gloo an operator that computes itself."""
        dur = self._about(dur * called.share * self._slow)
        if self.costs.gloo:
            self._op(called.name, dur, called=called, number=number, work="compute")
            return
        self._run("kernel", called.kernel, dur, self._launch(called.name, called=called, number=number))

    def copy(self, dur: int) -> None:
        """A copy from pinned host memory, on the compute stream."""
        if dur and not self.costs.gloo:
            links = {**self._launch("aten::copy_", call="cudaMemcpyAsync"), "bytes": 1 << 20}
            self._run("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", self._about(dur), links)

    def collective(
        self, op: str, group: str, *, elements: int | None = None, transfer_ns: int | None = None, early: bool = False
    ) -> Entering:
        """Enter a collective, on the group's own stream, once all compute so far is done; return its number in the group.

        elements, transfer_ns: of this one, where it differs from the plan's. early: it waits for no computation.
        """
        elements = self.costs.elements if elements is None else elements
        transfer_ns = self.costs.transfer_ns if transfer_ns is None else transfer_ns
        yield from self._until_left(group)
        sequence = self._last.get(group, 0) + 1
        before = self.meetings.get((group, sequence - 1))
        meeting = self.meetings.setdefault(
            (group, sequence),
            Meeting(
                op=op,
                group=group,
                sequence=sequence,
                step=self.step,
                transfer=self._about(transfer_ns),
                elements=elements,
            ),
        )
        self._last[group] = sequence
        links = self._launch(_GLOO_LAUNCHES[op] if self.costs.gloo else "record_param_comms")
        free = before.end if before is not None and before.end is not None else 0
        start = max(self.host, free, 0 if self.costs.gloo or early else self.compute_free)
        meeting.starts[self.rank] = start
        if len(meeting.starts) == len(self.groups[group]):
            meeting.end = max(meeting.starts.values()) + meeting.transfer
        stream = RUNLOOP if self.costs.gloo else 20 + list(self.groups).index(group)
        span = Span(
            cat="user_annotation" if self.costs.gloo else "kernel",
            name=self._collective_name(op), start=start, end=start, tid=stream,
            args=links | self._collective_args(op, meeting, stream, elements), step=self.step,
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

    def sync(self, late: int = 0) -> None:
        """The host waits for the compute stream, and its call returns ``late`` ns after that."""
        if self.costs.gloo:
            return
        end = max(self.host, self.compute_free) + self.costs.launch_ns + late
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

    def _about(self, dur: float) -> int:
        return round(dur * (1 + self.costs.jitter * (2 * self._random.random() - 1)))

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

    def _launch(
        self, op: str, *, called: Operator | None = None, number: int = 0, call: str = "cudaLaunchKernel"
    ) -> dict[str, Any]:
        """Record an operator that launches something, and return what links the launched to it."""
        dur = self.costs.launch_ns + self.extra_launch
        self._op(op, dur, called=called, number=number)
        start = self.host - dur
        if self.costs.gloo:
            return {"External id": self._ids + 1_000_000, "Record function id": self._ids + 1}
        edge = dur // 4000 * 1000
        links = {"External id": self._ids, "correlation": self._ids}
        self._record("cuda_runtime", call, start + edge, self.host - edge, {"cbid": 211, **links})
        return {"device": 0, "context": 1, **links}

    def _op(self, name: str, dur: int, *, called: Operator | None = None, number: int = 0, work: str = "") -> None:
        begin = self.host
        for depth, parent in enumerate(called.parents if called else ()):
            self._ids += 2
            outer = {"External id": self._ids, "Sequence number": number, "Ev Idx": len(self.spans)} | self._autograd()
            self._record("cpu_op", parent, begin + depth * NESTED_NS, begin + dur + depth * NESTED_NS, outer)
        self._ids += 2  # gloo's span takes the number between: launch + 1
        self.host += NESTED_NS * len(called.parents) if called else 0
        dims: Any = called.dims if called else ((64, 64), (64, 64))
        types = [called.dtype if called else "float"] * len(dims)
        if name.startswith("c10d::"):
            dims, types = [[[self.costs.elements]]], ["TensorList"]
        args: dict[str, Any] = {
            "External id": self._ids, "Record function id": self._ids, "Sequence number": number, **self._autograd(),
            "Input type": types, "Input Dims": dims, "Ev Idx": len(self.spans),
        }  # fmt: skip
        self._record("cpu_op", name, self.host, self.host + dur, args, work=work)
        self.host += dur

    def _autograd(self) -> dict[str, int]:
        return {"Fwd thread id": 1} if self.thread == AUTOGRAD else {}

    def _collective_name(self, op: str) -> str:
        if self.costs.gloo:
            return _GLOO_SPANS.get(op, f"gloo:{op}")
        kernel = _KERNELS[op].format("f32" if self.costs.dtype == "Float" else "bf16")
        if self.costs.old_names:
            return f"ncclKernel_{kernel}(ncclDevComm*, unsigned long, ncclWork*)"
        return f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"

    def _collective_args(self, op: str, meeting: Meeting, stream: int, n: int) -> dict[str, Any]:
        ranks = self.groups[meeting.group]
        if self.costs.gloo:
            return {"Input type": ["float"], "Input Dims": [[n]], "Ev Idx": len(self.spans)}
        if not self.costs.nccl_args:
            return {"stream": stream}
        share = {"all_gather": (n // len(ranks), n), "reduce_scatter": (n, n // len(ranks))}.get(op, (n, n))
        number = {"Seq": meeting.sequence} if self.costs.sequence else {}
        return {
            "stream": stream, "Collective name": _NCCL_NAMES[op], "In msg nelems": share[0],
            "Out msg nelems": share[1], "Group size": len(ranks), "dtype": self.costs.dtype, "In split size": "[]",
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
