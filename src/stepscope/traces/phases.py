"""Which phase of the step launched a piece of work: data, forward, backward, communication, optimizer, evaluation; each
one's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from types import MappingProxyType
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_budget import Phase, PhaseBudget
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.classify import Work
from stepscope.traces.events import Category, Events, RankTrace
from stepscope.traces.host_marks import DATA_MARKS, comm_calls
from stepscope.traces.links import Launches
from stepscope.traces.passes import AUTOGRAD, Passes, passes_of

Ints = NDArray[np.int64]

PHASES: tuple[Phase, ...] = get_args(Phase)
BACKWARD, FORWARD, OTHER = (PHASES.index(p) for p in ("backward", "forward", "other"))

_BY_ANNOTATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("data", DATA_MARKS),
    ("optimizer", ("stepscope.optimizer", "Optimizer.step", "Optimizer.zero_grad", "## optimizer")),
    ("communication", ("stepscope.communication",)),
    ("backward", (
        "stepscope.backward", "## backward", "FSDP::pre_backward", "FSDP::post_backward", "FSDP::backward_prefetch",
        "FSDP::root_post_backward", "FullyShardedDataParallel._pre_backward", "FullyShardedDataParallel._post_backward",
        "torch.distributed.ddp.reducer::",
    )),
    ("evaluation", ("stepscope.evaluation",)),
    ("forward", ("stepscope.forward", "stepscope.loss", "## forward", "DistributedDataParallel.forward",
                 "FullyShardedDataParallel.forward")),
)  # fmt: skip
"""Phase, and how the names of annotations and operators begin that mark it; earlier lines win."""

_BY_REGION: Mapping[str, tuple[str, ...]] = {
    "data": ("data", "load_data", "load_batch", "get_batch", "next_batch", "batch_generator"),
    "optimizer": ("optimizer", "optim_step"),
    "communication": ("allreduce", "all_reduce", "all-reduce", "communication", "comm_", "sync_grad", "gradient_sync"),
    "backward": ("backward", "bwd"),
    "evaluation": ("evaluat", "validat", "eval_", "val_"),
    "forward": ("forward", "fwd", "loss"),
}
"""Phase, and how the names of a job's own ranges begin that mark it, in small letters."""


def phase_spans(events: Events, regions: Mapping[str, str] = MappingProxyType({})) -> dict[str, Spans]:
    """The host's time in each phase, disjoint: annotations first, then the autograd engine's threads, then collectives
    called outside of all these.

    regions: name of a range (or how it begins) -> phase, as the user states it; stated ranges win over all others.
    Without a forward annotation, forward is what operators do inside a step and in no other phase, and not between a
    backward pass and what begins next. Evaluation: ``passes``, and ranges whose names say so.
    """
    host = np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))
    ranges = events.category == Category.USER_ANNOTATION

    def marked(marks: NDArray[np.bool_]) -> Spans:
        return spans.union(events.ts_ns[marks], events.end_ns[marks])

    found: dict[str, Spans] = dict.fromkeys(PHASES[:OTHER], spans.EMPTY)
    claimed = spans.EMPTY
    passes = Passes(evaluation=spans.EMPTY, after_backward=spans.EMPTY)

    def claim(phase: str, marks: NDArray[np.bool_]) -> None:
        nonlocal claimed
        mine = spans.subtract(marked(marks), claimed)
        found[phase] = spans.join(found[phase], mine)
        claimed = spans.join(claimed, mine)

    for name, phase in regions.items():
        claim(phase, ranges & events.named(methodcaller("startswith", name)))
    for phase, prefixes in _BY_ANNOTATION:
        marks = host & events.named(methodcaller("startswith", prefixes))
        marks |= ranges & events.named(_begins(_BY_REGION[phase]))
        if phase == "backward":
            marks |= host & (events.named(lambda n: n.startswith(AUTOGRAD)) | (events.forward_thread > 0))
        if phase == "evaluation":
            passes = passes_of(events, backward=found["backward"], optimizer=found["optimizer"])
            found[phase] = spans.subtract(passes.evaluation, claimed)
            claimed = spans.join(claimed, passes.evaluation)
        claim(phase, marks)
    calls = np.zeros(len(events), dtype=bool)
    calls[comm_calls(events)] = True
    claim("communication", calls)
    if not len(found["forward"]):
        claimed = spans.join(claimed, passes.after_backward)
        found["forward"] = spans.subtract(marked(events.category == Category.CPU_OP), claimed)
    return found


def _begins(names: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.lower().startswith(names)


def phase_at(phases: dict[str, Spans], times: Ints) -> NDArray[np.int8]:
    """The phase (index into PHASES) the host was in at each time; OTHER outside all of them."""
    result = np.full(len(times), OTHER, dtype=np.int8)
    for number, phase in enumerate(PHASES[:OTHER]):
        mine = phases[phase]
        if not len(mine):
            continue
        at = np.searchsorted(mine.starts, times, side="right") - 1
        inside = (at >= 0) & (times < mine.ends[np.maximum(at, 0)])
        result[inside] = number
    return result


def pass_at(phases: Mapping[str, Spans], times: Ints) -> Ints:
    """The phase (index into PHASES; OTHER: none) that began last before each time, communication left out: the host is in
    the backward pass in the holes between its nodes too."""
    latest = np.full((len(PHASES), len(times)), -1, dtype=np.int64)
    for number, phase in enumerate(PHASES[:OTHER]):
        starts = phases[phase].starts
        if phase != "communication" and len(starts):
            at = np.searchsorted(starts, times, side="right") - 1
            latest[number] = np.where(at >= 0, starts[np.maximum(at, 0)], -1)
    return np.where(latest.max(axis=0) >= 0, latest.argmax(axis=0), OTHER)


def launched_in(events: Events, activity: Activity, launches: Launches, phases: dict[str, Spans]) -> NDArray[np.int8]:
    """Phase of every event of ``activity``, by when it was launched; OTHER where no launch was recorded."""
    if activity.source == "cpu_spans":
        times = events.ts_ns[activity.indices].copy()
        called = events.ts_ns[comm_calls(events)]
        if len(called):  # a collective runs on a thread of its own, after the call that queued it
            comm = activity.work == Work.COMMUNICATION
            last = np.searchsorted(called, times[comm], side="right") - 1
            times[comm] = np.where(last >= 0, called[np.maximum(last, 0)], times[comm])
        return phase_at(phases, times)
    result = np.full(len(activity.indices), OTHER, dtype=np.int8)
    known = launches.known
    result[known] = phase_at(phases, events.ts_ns[launches.launch[known]])
    return result


def phase_budgets(
    trace: RankTrace, activity: Activity, launches: Launches, host: dict[str, Spans]
) -> tuple[PhaseBudget, ...]:
    """The window's parts by phase; each column sums to the window's. Empty without busy events.

    ``host``: the rank's ``phase_spans``.
    """
    events = trace.events
    window = activity.window
    if window is None:
        return ()
    low, high = window
    of_event = launched_in(events, activity, launches, host)
    starts, ends = events.ts_ns[activity.indices], events.end_ns[activity.indices]

    def split(kind: Work, free: Spans) -> list[Spans]:
        """The free time of one class by phase: where two phases overlap, the earlier phase has it. What no event covers (a
        rank of the CPU blocked on a collective that has not begun, or waking up) is the last one's that began by its end."""
        free = spans.clip(free, low=low, high=high)
        result = []
        for number in range(len(PHASES)):
            mine = (of_event == number) & (activity.work == kind)
            part = spans.intersect(spans.union(starts[mine], ends[mine]), free)
            result.append(part)
            free = spans.subtract(free, part)
        if len(free):
            mine = activity.work == kind
            owner = of_event[mine][np.maximum(np.searchsorted(starts[mine], free.ends, side="right") - 1, 0)]
            for number in range(len(PHASES)):
                here = owner == number
                result[number] = spans.join(result[number], Spans(free.starts[here], free.ends[here]))
        return result

    exposed_memory = spans.subtract(spans.subtract(activity.memory, activity.compute), activity.comm)
    compute = split(Work.COMPUTE, activity.compute)
    comm = split(Work.COMMUNICATION, activity.comm)
    memory = split(Work.MEMORY, exposed_memory)
    idle = _idle_by_next(activity, of_event, starts, host["data"], low=low, high=high)
    rows = []
    for number, phase in enumerate(PHASES):
        on_host = spans.clip(host[phase], low=low, high=high).measure if phase in host else 0
        rows.append(
            PhaseBudget(
                rank=trace.rank,
                phase=phase,
                compute_ns=compute[number].measure,
                exposed_comm_ns=spans.subtract(comm[number], activity.compute).measure,
                exposed_memory_ns=memory[number].measure,
                idle_ns=int(idle[number]),
                comm_ns=comm[number].measure,
                host_ns=on_host,
            )
        )
    return tuple(rows)


def _idle_by_next(
    activity: Activity, of_event: NDArray[np.int8], starts: Ints, loading: Spans, *, low: int, high: int
) -> NDArray[np.int64]:
    """Idle time by the phase of the work that ends each gap, shape (len(PHASES),); on CPU jobs what is data loading is
    the data phase's, whatever comes next."""
    holes = spans.gaps(activity.busy, low=low, high=high)
    after = np.searchsorted(starts, holes.ends, side="left")
    idle = holes.ends - holes.starts
    total = np.zeros(len(PHASES), dtype=np.int64)
    if activity.source == "cpu_spans":
        in_data = spans.measure_within(loading, holes.starts, holes.ends)
        total[PHASES.index("data")] = in_data.sum()
        idle = idle - in_data
    np.add.at(total, of_event[np.minimum(after, len(starts) - 1)], idle)
    return total
