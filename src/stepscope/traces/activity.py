"""What the device of one rank was doing when: a set of spans per class, and their budget. On CPU jobs, what its threads
did.

What bounds a rank's step, in one line, by exposed time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.trace_budget import BudgetVerdict, IdleCause, Parts, RankBudget
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.classes import work_of
from stepscope.traces.events import Ints, RankView, once
from stepscope.traces.kernel_names import Work

if TYPE_CHECKING:
    from stepscope.records.trace_collectives import RankWaitTotal
    from stepscope.records.trace_quality import QualityFact


@record
class Activity:
    """Busy spans of one rank by class, and the indices of the events they come from (in order of start)."""

    source: str  # device | cpu_spans
    compute: Spans
    comm: Spans
    memory: Spans
    indices: Ints
    work: NDArray[np.int8]  # class of events[indices]
    window: tuple[int, int] | None = None  # what the rank's budget is of; None without busy events
    worked: tuple[int, int] | None = None  # from the first start to the last end of the busy events

    @property
    def busy(self) -> Spans:
        return spans.join(self.compute, self.comm, self.memory)


@once
def activity_of(view: RankView) -> Activity:
    """Classify and unite the device events; without any, what the threads of the CPU did (``cpu_work``).

    The window of a rank is from the first start to the last end of its busy events, and from its first step's mark to the
    end of its last one where these lie further out; of a CPU rank it is that of the profiler's marks, where there are any.
    """
    events = view.events
    if events.is_device.any():
        work, on_cpu = work_of(view), None
    else:
        from stepscope.traces.passes import cpu_work

        on_cpu = cpu_work(events)
        work = on_cpu.work
    chosen = events.by_start(work != Work.NOT_DEVICE)
    kinds = work[chosen]
    starts, ends = events.ts_ns[chosen], events.end_ns[chosen]

    def united(kind: Work) -> Spans:
        of_kind = kinds == kind
        return spans.union(starts[of_kind], ends[of_kind])

    window = worked = (int(starts[0]), int(ends.max())) if len(chosen) else None
    if worked is not None:
        from stepscope.traces.marks import whole_window

        window = (on_cpu and on_cpu.marked) or whole_window(view, *worked)
    return Activity(
        source="device" if on_cpu is None else "cpu_spans",
        compute=united(Work.COMPUTE) if on_cpu is None else on_cpu.compute,
        comm=united(Work.COMMUNICATION) if on_cpu is None else on_cpu.comm,
        memory=united(Work.MEMORY),
        indices=chosen,
        work=kinds,
        window=window,
        worked=worked,
    )


def parts_within(activity: Activity, *, low: int, high: int) -> Parts:
    """The budget of [low, high); its parts sum to the window exactly."""
    compute = spans.clip(activity.compute, low=low, high=high)
    comm = spans.clip(activity.comm, low=low, high=high)
    memory = spans.clip(activity.memory, low=low, high=high)
    exposed_comm = spans.subtract(comm, compute)
    exposed_memory = spans.subtract(spans.subtract(memory, compute), comm)
    window = high - low
    busy = compute.measure + exposed_comm.measure + exposed_memory.measure
    return Parts(
        window_ns=window,
        compute_ns=compute.measure,
        comm_ns=comm.measure,
        memory_ns=memory.measure,
        overlap_ns=comm.measure - exposed_comm.measure,
        exposed_comm_ns=exposed_comm.measure,
        exposed_memory_ns=exposed_memory.measure,
        busy_ns=busy,
        idle_ns=window - busy,
    )


def rank_budget(view: RankView) -> RankBudget | None:
    """Compute, communication, copies and idle time of the window; None without busy events.

    On a device nothing is dropped: the last step, work launched before the capture and kernels below 1 us count.
    """
    activity = activity_of(view)
    if activity.window is None or activity.worked is None:
        return None
    low, high = activity.window
    first, last = activity.worked
    return RankBudget(
        rank=view.rank,
        source=activity.source,
        start_ns=low,
        parts=parts_within(activity, low=low, high=high),
        event_count=len(activity.indices),
        before_work_ns=max(first - low, 0),
        after_work_ns=max(high - last, 0),
    )


BALANCED_RATIO = 1.2
"""Compute and communication within this factor of each other count as balanced."""

_TEXTS = {
    "compute": "compute-bound: the device computes {share} of the time, as it should",
    "communication": f"communication-bound: {{share}} of the time is {EXPOSED_COMM}",
    "waiting": "waiting for a peer: {share} of the time this rank waits in collectives for another rank",
    "input": "input-bound: the device idles {share} of the time while the host loads data",
    "launch": "launch-bound: the device idles {share} of the time because the host launches work too late",
    "sync": "held by waits of the host: the device idles {share} of the time after the host waited for it",
    "memory": "memory-copy-bound: {share} of the time is exposed copies",
    "pages": "held by unified memory: the device idles {share} of the time until pages move",
    "overhead": "overhead-bound: no operator runs {share} of the time: Python between operators, or waiting",
    "start_up": "start-up: for {share} of the time the host does what comes once, and the device idles",
    "stall": "stalled: the device idles {share} of the time in single long gaps",
    "queue": "idle between queued kernels: the device does nothing {share} of the time although work is launched",
    "idle": "idle: the device does nothing {share} of the time; the trace shows no cause",
    "unknown": "unknown: for {share} of the time the trace lacks launches or their kernels",
}


def verdict_of(
    budget: RankBudget,
    idle: Sequence[IdleCause],
    *,
    waits: RankWaitTotal | None = None,
    late: str | None = None,
    unclear: QualityFact | None = None,
) -> BudgetVerdict:
    """The largest exposed part of the window decides; ``waits`` (from matching ranks) is taken off
    communication, None where other ranks' traces are missing.

    Compute against communication within ``BALANCED_RATIO`` of each other, when these two are the largest, is
    ``balanced``. late: why the others wait for this rank, where they do: it is not bound by its own waiting then.
    unclear: what takes the classes away, where something does: nothing is bound by computation then.
    """
    parts = budget.parts
    if parts.window_ns == 0:
        return BudgetVerdict(kind="unknown", text="no device activity", share=None, compute_to_comm_ratio=None)
    waiting = waits.exposed_ns if waits is not None else 0
    causes = {cause.cause: cause.idle_ns for cause in idle}
    on_cpu = budget.source == "cpu_spans"
    launch = 0 if on_cpu else causes.get("host_late", 0) + causes.get("launch_latency", 0)
    exposed = {
        "compute": parts.compute_ns,
        "communication": parts.exposed_comm_ns - waiting,
        "waiting": waiting,
        "input": causes.get("data", 0),
        "launch": launch,
        "sync": causes.get("sync", 0),
        "memory": parts.exposed_memory_ns,
        "pages": causes.get("pages", 0),
        "overhead": causes.get("outside_operators", 0),
        "start_up": causes.get("start_up", 0),
        "stall": causes.get("long_gap", 0),
        "queue": causes.get("kernel_gap", 0) + causes.get("dependency", 0),
        "unknown": causes.get("unknown", 0),
    }
    own = ("input", "launch", "sync", "overhead", "start_up", "stall", "queue", "unknown", "pages")
    exposed["idle"] = parts.idle_ns - sum(exposed[kind] for kind in own)
    ratio = compute_to_comm(parts, waiting_ns=waits.alone_ns if waits is not None else 0)
    if late is not None:
        del exposed["waiting"]
    kind = max(exposed, key=lambda k: exposed[k])
    share = exposed[kind] / parts.window_ns
    if unclear is not None and kind == "compute":
        return BudgetVerdict(kind="unknown", text=unclear.text, share=None, compute_to_comm_ratio=None)
    if (
        kind in ("compute", "communication")
        and unclear is None
        and ratio is not None
        and 1 / BALANCED_RATIO <= ratio <= BALANCED_RATIO
    ):
        text = f"balanced: computation and communication take about equally long (ratio {ratio:.2f})"
        return BudgetVerdict(kind="balanced", text=text, share=share, compute_to_comm_ratio=ratio)
    text = _TEXTS[kind].format(share=format_percent(share, digits=0))
    if kind == "communication" and waits is None:
        text += " (the other ranks' traces would show how much of it is waiting for them)"
    if late is not None:
        text = f"the other ranks wait for this one ({late}); {text}"
    kind = {"sync": "launch", "queue": "idle", "start_up": "start-up", "pages": "memory"}.get(kind, kind)
    return BudgetVerdict(kind=kind, text=text, share=share, compute_to_comm_ratio=ratio)


def compute_to_comm(parts: Parts, *, waiting_ns: int) -> float | None:
    """Return busy time of computation over that of communication less ``waiting_ns``, the time in it in which nothing
    transfers; None without any."""
    net = parts.comm_ns - waiting_ns
    return parts.compute_ns / net if net > 0 else None
