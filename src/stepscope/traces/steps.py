"""The training steps of a rank, as they are marked, and the time budget of each.

Which phase of the step launched a piece of work: data, forward, backward, communication, optimizer, evaluation; each
one's share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.records.trace_budget import OutsideWork, Phase, PhaseBudget, StepBudget
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity, activity_of, parts_within
from stepscope.traces.events import Category, Events, Ints, RankView, once
from stepscope.traces.kernel_names import Work
from stepscope.traces.launches import launches_of
from stepscope.traces.marks import Marks, marks_of
from stepscope.traces.passes import AUTOGRAD, Passes, comm_calls, loading_marks, passes_of
from stepscope.traces.startup import start_up


@record
class StepWindows:
    """The steps of one rank and where each begins on the device: ``edges``, ascending, len(marks) + 1 of them.

    Both are empty without marks or busy events. boundary: launch | host, how the steps were told apart.
    """

    marks: Marks
    boundary: str
    edges: Ints


def step_windows(view: RankView) -> StepWindows:
    """The windows of all steps.

    Device work runs behind the host; a step's window therefore begins with the first device work that the
    step launched, with the idle time before it as far as its mark goes back (data that it waits for), and ends where the
    next one's begins; the last ends with the last busy event it launched, and with its mark, or where work launched after
    it begins. Where the stream that computes longest still runs what was launched before
    while a step's first work starts on another stream (the copy of its input, say), the step begins with its first work
    on that stream: what was launched before the first step is in none of them.
    """
    events, activity, launches, marks = view.events, activity_of(view), launches_of(view), marks_of(view)
    window = activity.window
    if window is None or not len(marks):
        return StepWindows(marks=marks, boundary="host", edges=np.empty(0, dtype=np.int64))
    if activity.source == "device" and launches.linked.any():
        work = launches.of[launches.linked]
        when = events.ts_ns[launches.launch[launches.linked]]
        begins = np.append(marks.starts, marks.ends[-1])  # the last one: what was launched after the steps
        owner = np.searchsorted(begins, when, side="right") - 1
        edges = _step_begins_ns(events, work, owner, end=window[1], steps=len(begins))
        main = _main_stream(events, activity)
        on_main = np.isin(work, main)
        chosen = on_main | ~np.isin(owner, owner[on_main])
        by_main = _step_begins_ns(events, work[chosen], owner[chosen], end=window[1], steps=len(begins))
        computes_until = spans.last_end(events.ts_ns[main], events.end_ns[main], by_main)
        edges = np.where(computes_until > edges, by_main, edges)
        # A step that launched nothing is empty, and begins where the next one does.
        edges = np.minimum.accumulate(edges[::-1])[::-1]
        idle = spans.gaps(activity.busy, low=window[0], high=window[1])
        hole = np.searchsorted(idle.ends, edges)
        before = (hole < len(idle)) & (np.append(idle.ends, 0)[hole] == edges)
        begun = np.maximum(np.append(idle.starts, 0)[hole], begins)
        edges = np.where(before, np.minimum(begun, edges), edges)
        return StepWindows(marks=marks, boundary="launch", edges=edges)
    return StepWindows(marks=marks, boundary="host", edges=np.append(marks.starts, marks.ends[-1]))


@once
def windows_of(view: RankView) -> StepWindows:
    """The windows of all steps but those that a truncated file holds a part of: the last one with work of the rank in it,
    and what the host began after that."""
    windows = step_windows(view)
    window = activity_of(view).window
    if window is None or not any(note.kind == "truncated" for note in view.trace.notes):
        return windows
    kept = max(int((windows.edges[:-1] < window[1]).sum()) - 1, 0)
    return StepWindows(
        marks=windows.marks.first(kept), boundary=windows.boundary, edges=windows.edges[: kept + 1 if kept else 0]
    )


def _step_begins_ns(events: Events, work: Ints, owner: Ints, *, end: int, steps: int) -> Ints:
    """Start of each step's first work, ``end`` for a step without any; ``owner`` is negative before the steps."""
    edges = np.full(steps, end, dtype=np.int64)
    inside = owner >= 0
    np.minimum.at(edges, owner[inside], events.ts_ns[work[inside]])
    return edges


def _main_stream(events: Events, activity: Activity) -> Ints:
    """Device work on the stream that computes longest."""
    compute = activity.indices[activity.work == Work.COMPUTE]
    lanes, place = np.unique(events.lane(compute), return_inverse=True)
    if not len(lanes):
        return np.empty(0, dtype=np.int64)
    main = lanes[np.argmax(np.bincount(place, weights=events.dur_ns[compute]))]
    on_main: Ints = activity.indices[events.lane(activity.indices) == main]
    return on_main


@once
def step_budgets(view: RankView) -> tuple[StepBudget, ...]:
    """One budget per step; empty when no steps are marked."""
    windows, activity = windows_of(view), activity_of(view)
    marks, edges = windows.marks, windows.edges
    once_only = spans.EMPTY
    if len(edges) and activity.source == "device":
        once_only = spans.subtract(start_up(view).when, activity.busy)
    start_up_ns = spans.measure_within(once_only, edges[:-1], edges[1:])
    return tuple(
        StepBudget(
            rank=view.rank,
            step=int(marks.numbers[i]),
            boundary=windows.boundary,
            start_ns=int(edges[i]),
            host_ns=int(marks.ends[i] - marks.starts[i]),
            parts=parts_within(activity, low=int(edges[i]), high=int(edges[i + 1])),
            marked_by=marks.by,
            kind=marks.kinds[i] if marks.kinds else "step",
            start_up_ns=int(start_up_ns[i]),
        )
        for i in range(len(edges) - 1)
    )


def outside_work(view: RankView) -> OutsideWork | None:
    """Device work outside the recorded steps, so that nothing is dropped silently; None without steps."""
    edges, activity = windows_of(view).edges, activity_of(view)
    window = activity.window
    if not len(edges) or window is None:
        return None
    starts = view.events.ts_ns[activity.indices]
    unknown = int((~launches_of(view).linked).sum()) if windows_of(view).boundary == "launch" else 0
    first = int(edges[0])
    return OutsideWork(
        rank=view.rank,
        before_first_step=int((starts < first).sum()),
        after_last_step=int((starts >= edges[-1]).sum()),
        launched_before_window=unknown,
        before_ns=spans.clip(activity.busy, low=min(window[0], first), high=first).measure,
    )


PHASES: tuple[Phase, ...] = get_args(Phase)
BACKWARD, FORWARD, OTHER = (PHASES.index(p) for p in ("backward", "forward", "other"))

_BY_ANNOTATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("data", ()),
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
    "data": (
        "data",
        "load_data",
        "load_batch",
        "get_batch",
        "next_batch",
        "batch_generator",
        "batch-generator",
        "dali",
        "[dali]",
        "ffcv",
        "tf.data",
        "webdataset",
        "webloader",
        "wds.",
    ),
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
    host = events.of(Category.USER_ANNOTATION, Category.CPU_OP)
    ranges = events.category == Category.USER_ANNOTATION

    def marked(marks: NDArray[np.bool_]) -> Spans:
        return events.spans(marks)

    phases: dict[str, Spans] = dict.fromkeys(PHASES[:OTHER], spans.EMPTY)
    claimed = spans.EMPTY
    passes = Passes(evaluation=spans.EMPTY, after_backward=spans.EMPTY)

    def claim(phase: str, marks: NDArray[np.bool_]) -> None:
        nonlocal claimed
        unclaimed = spans.subtract(marked(marks), claimed)
        phases[phase] = spans.join(phases[phase], unclaimed)
        claimed = spans.join(claimed, unclaimed)

    for name, phase in regions.items():
        claim(phase, ranges & events.begins(name))
    for phase, prefixes in _BY_ANNOTATION:
        marks = host & events.begins(prefixes)
        marks |= ranges & events.named(_phase_begins(_BY_REGION[phase]))
        if phase == "data":
            marks |= loading_marks(events)
        if phase == "backward":
            marks |= host & (events.begins(AUTOGRAD) | (events.forward_thread > 0))
        if phase == "evaluation":
            passes = passes_of(events, backward=phases["backward"], optimizer=phases["optimizer"])
            phases[phase] = spans.subtract(passes.evaluation, claimed)
            claimed = spans.join(claimed, passes.evaluation)
        claim(phase, marks)
    calls = np.zeros(len(events), dtype=bool)
    calls[comm_calls(events)] = True
    claim("communication", calls)
    if not len(phases["forward"]):
        claimed = spans.join(claimed, passes.after_backward)
        phases["forward"] = spans.subtract(marked(events.category == Category.CPU_OP), claimed)
    return phases


@once
def phases_of(view: RankView) -> dict[str, Spans]:
    """The rank's ``phase_spans``, with the ranges that the user states."""
    return phase_spans(view.events, dict(view.wanted.regions))


def _phase_begins(names: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.lower().startswith(names)


def phase_at(phases: dict[str, Spans], times: Ints) -> NDArray[np.int8]:
    """The phase (index into PHASES) the host was in at each time; OTHER outside all of them."""
    result = np.full(len(times), OTHER, dtype=np.int8)
    for number, phase in enumerate(PHASES[:OTHER]):
        result[spans.holds(phases[phase], times)] = number
    return result


def phase_of(phases: Mapping[str, Spans], time: int) -> str | None:
    """The phase that the host was in at a time; None outside all of them."""
    at = np.array([time], dtype=np.int64)
    return next((name for name, phase in phases.items() if spans.holds(phase, at)[0]), None)


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


def launched_in(view: RankView) -> NDArray[np.int8]:
    """Phase of every event of the rank's activity, by when it was launched; OTHER where no launch was recorded."""
    events, activity, phases = view.events, activity_of(view), phases_of(view)
    if activity.source == "cpu_spans":
        times = events.ts_ns[activity.indices].copy()
        called = events.ts_ns[comm_calls(events)]
        if len(called):  # a collective runs on a thread of its own, after the call that queued it
            comm = activity.work == Work.COMMUNICATION
            last = np.searchsorted(called, times[comm], side="right") - 1
            times[comm] = np.where(last >= 0, called[np.maximum(last, 0)], times[comm])
        return phase_at(phases, times)
    result = np.full(len(activity.indices), OTHER, dtype=np.int8)
    linked = launches_of(view).linked
    result[linked] = phase_at(phases, events.ts_ns[launches_of(view).launch[linked]])
    return result


def phase_budgets(view: RankView) -> tuple[PhaseBudget, ...]:
    """The window's parts by phase; each column sums to the window's. Empty without busy events."""
    events, activity, host = view.events, activity_of(view), phases_of(view)
    window = activity.window
    if window is None:
        return ()
    low, high = window
    of_event = launched_in(view)
    starts, ends = events.ts_ns[activity.indices], events.end_ns[activity.indices]

    def split(kind: Work, free: Spans) -> list[Spans]:
        """The free time of one class by phase: where two phases overlap, the earlier phase has it. What no event covers (a
        rank of the CPU blocked on a collective that has not begun, or waking up) is the last one's that began by its end."""
        free = spans.clip(free, low=low, high=high)
        result = []
        for number in range(len(PHASES)):
            members = (of_event == number) & (activity.work == kind)
            part = spans.intersect(spans.union(starts[members], ends[members]), free)
            result.append(part)
            free = spans.subtract(free, part)
        if len(free):
            members = activity.work == kind
            owner = of_event[members][np.maximum(np.searchsorted(starts[members], free.ends, side="right") - 1, 0)]
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
                rank=view.rank,
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
    behind = after == len(starts)
    np.add.at(total, np.where(behind, OTHER, of_event[np.minimum(after, len(starts) - 1)]), idle)
    return total
