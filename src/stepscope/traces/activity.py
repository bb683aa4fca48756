"""What the device of one rank was doing when: a set of spans per class, and their budget. On CPU jobs, what its threads
did.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_budget import Parts, RankBudget
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.events import Events, Ints, RankTrace
from stepscope.traces.kernel_names import Work, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Busy spans of one rank by class, and the indices of the events they come from (in order of start)."""

    source: str  # device | cpu_spans
    compute: Spans
    comm: Spans
    memory: Spans
    indices: Ints
    work: NDArray[np.int8]  # class of events[indices]
    window: tuple[int, int] | None = None  # what the rank's budget is of; None without busy events

    @property
    def busy(self) -> Spans:
        return spans.join(self.compute, self.comm, self.memory)


def activity_of(events: Events) -> Activity:
    """Classify and unite the device events; without any, what the threads of the CPU did (``cpu_work``).

    The window of a CPU rank is that of its step marks, loading before the first operator included; without marks, and on a
    device, it is from the first start to the last end of the busy events.
    """
    if events.is_device.any():
        work, on_cpu = work_of(events), None
    else:
        from stepscope.traces.cpu_work import cpu_work

        on_cpu = cpu_work(events)
        work = on_cpu.work
    chosen = np.flatnonzero(work != Work.NOT_DEVICE)
    chosen = chosen[np.argsort(events.ts_ns[chosen], kind="stable")]
    kinds = work[chosen]
    starts, ends = events.ts_ns[chosen], events.end_ns[chosen]

    def united(kind: Work) -> Spans:
        mine = kinds == kind
        return spans.union(starts[mine], ends[mine])

    window = (int(starts[0]), int(ends.max())) if len(chosen) else None
    if on_cpu is not None and window is not None:
        window = on_cpu.marked or window
    return Activity(
        source="device" if on_cpu is None else "cpu_spans",
        compute=united(Work.COMPUTE) if on_cpu is None else on_cpu.compute,
        comm=united(Work.COMMUNICATION) if on_cpu is None else on_cpu.comm,
        memory=united(Work.MEMORY),
        indices=chosen,
        work=kinds,
        window=window,
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


def rank_budget(trace: RankTrace, activity: Activity) -> RankBudget | None:
    """Compute, communication, copies and idle time of the window; None without busy events.

    On a device nothing is dropped: the last step, work launched before the capture and kernels below 1 us count.
    """
    if activity.window is None:
        return None
    low, high = activity.window
    return RankBudget(
        rank=trace.rank,
        source=activity.source,
        start_ns=low,
        parts=parts_within(activity, low=low, high=high),
        event_count=len(activity.indices),
    )
