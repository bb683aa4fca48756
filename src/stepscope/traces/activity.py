"""What the device of one rank was doing when: a set of spans per class, and their budget. On CPU jobs, what its threads
did."""

from __future__ import annotations

from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_budget import Parts, RankBudget
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.classify import Work, work_of
from stepscope.traces.events import Category, Events, RankTrace

Ints = NDArray[np.int64]

_COMM_LAUNCHES = (
    "c10d::", "_c10d_functional::", "c10d_functional::", "gloo:", "record_param_comms", "nccl:", "mpi:", "ucc:",
)  # fmt: skip
"""Operators that call a collective or wait for one. On a CPU trace they, and whatever they are nested in, compute nothing
while they run."""


DATA_MARKS = (
    "stepscope.data", "enumerate(DataLoader)", "enumerate(DataPipe)", "DataLoader", "## data",
    "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "[pl][profile]get_train_batch",
)  # fmt: skip
"""How the names of annotations and operators begin inside which data is loaded: torch's, Lightning's, stepscope's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Busy spans of one rank by class, and the indices of the events they come from (in order of start)."""

    source: str  # device | cpu_spans
    compute: Spans
    comm: Spans
    memory: Spans
    indices: Ints
    work: NDArray[np.int8]  # class of events[indices]

    @property
    def busy(self) -> Spans:
        return spans.join(self.compute, self.comm, self.memory)


def activity_of(events: Events) -> Activity:
    """Classify and unite the device events; without any, gloo spans against the other operators of the CPU."""
    work = work_of(events)
    source = "device"
    if not events.is_device.any():
        work, source = _cpu_work(events), "cpu_spans"
    chosen = np.flatnonzero(work != Work.NOT_DEVICE)
    chosen = chosen[np.argsort(events.ts_ns[chosen], kind="stable")]
    kinds = work[chosen]
    starts, ends = events.ts_ns[chosen], events.end_ns[chosen]

    def united(kind: Work) -> Spans:
        mine = kinds == kind
        return spans.union(starts[mine], ends[mine])

    compute = united(Work.COMPUTE) if source == "device" else _computing(events, chosen[kinds == Work.COMPUTE])
    return Activity(
        source=source,
        compute=compute,
        comm=united(Work.COMMUNICATION),
        memory=united(Work.MEMORY),
        indices=chosen,
        work=kinds,
    )


def _cpu_work(events: Events) -> NDArray[np.int8]:
    """Communication = spans of the library's own threads (``gloo:*``); compute = operators that are not its calls and
    not inside the data loader on the same thread: collation and augmentation are data time."""
    names = np.zeros(len(events.names), dtype=np.int8)
    for code, name in enumerate(events.names):
        names[code] = 2 if name.startswith("gloo:") else 1 if name.startswith(_COMM_LAUNCHES) else 0
    kind = names[events.name]
    work = np.zeros(len(events), dtype=np.int8)
    operators = np.flatnonzero((events.category == Category.CPU_OP) & (kind == 0))
    work[operators[~_inside_loader(events, operators)]] = Work.COMPUTE
    work[(kind == 2) & np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))] = Work.COMMUNICATION
    return work


def comm_calls(events: Events) -> Ints:
    """Operators of the host that call a collective or wait for one, in order of their start."""
    calls = events.named(lambda n: n.startswith(_COMM_LAUNCHES) and not n.startswith("gloo:"))
    found = np.flatnonzero((events.category == Category.CPU_OP) & calls)
    return found[np.argsort(events.ts_ns[found], kind="stable")]


def _computing(events: Events, operators: Ints) -> Spans:
    """When any thread of the CPU is in an operator and not, inside it, in a call of a collective or a wait for one."""
    calls = comm_calls(events)
    if not len(calls):
        return spans.union(events.ts_ns[operators], events.end_ns[operators])
    from stepscope.stats.by_sorting import distinct  # traces of devices do not need it

    parts = []
    for thread in distinct(events.thread[operators]).tolist():
        mine, held = operators[events.thread[operators] == thread], calls[events.thread[calls] == thread]
        parts.append(
            spans.subtract(
                spans.union(events.ts_ns[mine], events.end_ns[mine]),
                spans.union(events.ts_ns[held], events.end_ns[held]),
            )
        )
    return spans.join(*parts) if parts else spans.EMPTY


def loading_marks(events: Events) -> NDArray[np.bool_]:
    """The annotations and operators that mark data loading, shape (len(events),)."""
    host = np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))
    return host & events.named(methodcaller("startswith", DATA_MARKS))


def _inside_loader(events: Events, operators: Ints) -> NDArray[np.bool_]:
    """Which of these operators begin while their own thread loads data."""
    from stepscope.stats.by_sorting import distinct  # traces of devices do not need it

    marks = np.flatnonzero(loading_marks(events))
    inside = np.zeros(len(operators), dtype=bool)
    for thread in distinct(events.thread[marks]).tolist():
        mine = marks[events.thread[marks] == thread]
        loading = spans.union(events.ts_ns[mine], events.end_ns[mine])
        here = np.flatnonzero(events.thread[operators] == thread)
        starts = events.ts_ns[operators[here]]
        at = np.searchsorted(loading.starts, starts, side="right") - 1
        inside[here] = (at >= 0) & (starts < loading.ends[np.maximum(at, 0)])
    return inside


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


def window_of(activity: Activity, events: Events) -> tuple[int, int] | None:
    """First start and last end of the busy events; None when there are none."""
    if not len(activity.indices):
        return None
    return int(events.ts_ns[activity.indices[0]]), int(events.end_ns[activity.indices].max())


def rank_budget(trace: RankTrace, activity: Activity) -> RankBudget | None:
    """Compute, communication, copies and idle time from the first to the last busy event; None without any.

    Nothing is dropped: the last step, work launched before the capture and kernels below 1 us count.
    """
    window = window_of(activity, trace.events)
    if window is None:
        return None
    low, high = window
    return RankBudget(
        rank=trace.rank,
        source=activity.source,
        start_ns=low,
        parts=parts_within(activity, low=low, high=high),
        event_count=len(activity.indices),
    )
