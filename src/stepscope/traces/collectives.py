"""The collectives of one rank: what each moved, for how long it was exposed, and what came before it.

What a rank did between two collectives: computing, copying, or idle and why.
"""

from __future__ import annotations

import numpy as np

from stepscope.core.words import grouped
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import IDLE_CAUSES, HiddenUnder, OwnTime, RankCollective, RankCommunication
from stepscope.stats import spans
from stepscope.stats.spans import distinct
from stepscope.traces.activity import Activity, activity_of
from stepscope.traces.collective_calls import Identity, identities
from stepscope.traces.events import NONE, Events, Ints, RankView, column, once
from stepscope.traces.gloo import gloo_calls
from stepscope.traces.groups import Groups, group_name, kind_by_name, kind_by_operations
from stepscope.traces.idle import IdleGaps, idle_gaps
from stepscope.traces.kernel_names import Work
from stepscope.traces.launches import launches_of
from stepscope.traces.nesting import sums
from stepscope.traces.steps import FORWARD, StepWindows, pass_at, phases_of, windows_of
from stepscope.traces.waits import exact


def own_times(activity: Activity, gaps: IdleGaps, starts: Ints, ends: Ints) -> list[OwnTime]:
    """Return for each collective [starts[i], ends[i]), ascending by start, the time since the rank left the one before.

    It counts from the latest end of those that started earlier and is 0 when one of them is still running. Time for which a
    rank of the CPU is blocked on a collective does not count.
    """
    window = activity.window
    if window is None or not len(starts):
        return []
    left = np.maximum.accumulate(np.concatenate([np.array([window[0]], dtype=np.int64), ends]))[:-1]
    begins = np.minimum(left, starts)
    compute = spans.measure_within(activity.compute, begins, starts)
    copies = spans.subtract(activity.memory, activity.compute)
    memory = spans.measure_within(copies, begins, starts)
    idle = _idle_by_cause(gaps, begins, starts)
    own = starts - begins
    if activity.source == "cpu_spans":  # blocked on a collective that has not begun
        own = own - spans.measure_within(spans.subtract(activity.comm, activity.compute), begins, starts)
    columns = {"own_ns": own, "compute_ns": compute, "memory_ns": memory, **{f"{c}_ns": idle[c] for c in IDLE_CAUSES}}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [OwnTime(**dict(zip(columns, row, strict=True)), from_window_start=i == 0) for i, row in enumerate(rows)]


def _idle_by_cause(gaps: IdleGaps, begins: Ints, starts: Ints) -> dict[str, Ints]:
    """Idle time of each window by cause. Gaps and windows both end where something busy begins, so that a gap
    lies in one window or in none."""
    holes = gaps.holes
    totals = {cause: np.zeros(len(starts), dtype=np.int64) for cause in IDLE_CAUSES}
    owner = np.searchsorted(starts, holes.ends, side="left")
    safe = np.minimum(owner, len(starts) - 1)
    inside = (owner < len(starts)) & (begins[safe] <= holes.starts)
    for cause, values in gaps.by_cause.items():
        np.add.at(totals[cause], safe[inside], values[inside])
    return totals


_WHAT = tuple(Identity.__dataclass_fields__)

HIDING_NAMES = 3
"""How many names of hiding computation to keep per collective."""


@once
def communication(view: RankView) -> RankCommunication:
    """Return a rank's collectives, and what is needed to match them with other ranks'. O(n log n) in events.

    The collectives of device traces are communication kernels, those of CPU traces the ``gloo:*`` spans.
    """
    events, activity, launches, meta = view.events, activity_of(view), launches_of(view), view.meta
    groups = Groups(meta, view.rank)
    if activity.source == "device":
        places = np.flatnonzero(activity.work == Work.COMMUNICATION)
        kernels, launch = activity.indices[places], launches.launch[places]
        identified = identities(events, kernels, launch, groups)
        starts, ends = events.ts_ns[kernels], events.end_ns[kernels]
        launched = np.where(launch != NONE, events.ts_ns[launch], NONE) if len(kernels) else launch
    else:
        calls = gloo_calls(events, groups)
        identified = [c.identity for c in calls]
        starts = column(calls, "start_ns")
        ends = column(calls, "end_ns")
        launched = column(calls, "launch_ns")
    exposed = ends - starts - spans.measure_within(activity.compute, starts, ends)
    hidden = _hidden_under(events, activity, starts, ends)
    steps = _step_numbers(windows_of(view), starts, launched)
    own = own_times(activity, idle_gaps(view), starts, ends)
    collectives = tuple(
        RankCollective(
            **{name: getattr(what, name) for name in _WHAT},
            start_ns=start,
            end_ns=end,
            launch_ns=None if launch_ns == NONE else launch_ns,
            step=None if step == NONE else step,
            exposed_ns=exposed_ns,
            hidden_under=hidden[i],
            own=own[i],
        )
        for i, (what, start, end, launch_ns, step, exposed_ns) in enumerate(
            zip(identified, *(a.tolist() for a in (starts, ends, launched, steps, exposed)), strict=True)
        )
    )
    return RankCommunication(
        rank=view.rank,
        host=meta.host,
        world_size=meta.world_size,
        source=activity.source,
        base_time_ns=meta.base_time_ns,
        window_ns=activity.window,
        collectives=collectives,
        exposed=exact(spans.subtract(activity.comm, activity.compute)),
        begins_ns=int(events.ts_ns.min()) if len(events) else None,
    )


def _step_numbers(windows: StepWindows, starts: Ints, launched: Ints) -> Ints:
    """Return the number of the step that called each collective, else of the step in whose device time it ran, or NONE.

    Without a recorded launch, where others have one, it may have been called before the capture: the first step has none.
    """
    marks, edges = windows.marks, windows.edges
    if not len(marks) or not len(starts):
        return np.full(len(starts), NONE, dtype=np.int64)
    called = spans.place(marks.starts, marks.ends, launched)
    within = (launched != NONE) & (called != NONE)
    ran = np.searchsorted(edges, starts, side="right") - 1
    inside = (launched == NONE) & (ran >= (windows.boundary == "launch")) & (ran < len(marks))
    place = np.where(within, called, np.where(inside, ran, NONE))
    return np.where(place != NONE, marks.numbers[np.maximum(place, 0)], NONE)


def _hidden_under(events: Events, activity: Activity, starts: Ints, ends: Ints) -> list[tuple[HiddenUnder, ...]]:
    """Return for each collective the names of computation that ran longest during it, longest first.

    Pairs are found stream by stream, where kernels do not overlap: their number is that of real overlaps.
    """
    compute = activity.indices[activity.work == Work.COMPUTE]
    lane = events.stream if activity.source == "device" else events.thread
    names = len(events.names)
    keys: list[Ints] = []
    amounts: list[Ints] = []
    for one in distinct(lane[compute]).tolist():
        on_lane = compute[lane[compute] == one]
        begun, over = events.ts_ns[on_lane], np.maximum.accumulate(events.end_ns[on_lane])
        which, place = spans.pairs(
            np.searchsorted(over, starts, side="right"), np.searchsorted(begun, ends, side="left")
        )
        kernel = on_lane[place]
        shared = np.minimum(events.end_ns[kernel], ends[which]) - np.maximum(events.ts_ns[kernel], starts[which])
        keep = shared > 0
        keys.append(which[keep] * names + events.name[kernel[keep]])
        amounts.append(shared[keep])
    result: list[tuple[HiddenUnder, ...]] = [()] * len(starts)
    if not keys:
        return result
    key, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    total = sums(inverse, np.concatenate(amounts), len(key))
    order = np.lexsort((key, -total, key // names))
    key, total = key[order], total[order]
    owner = key // names
    begin = np.searchsorted(owner, np.arange(len(starts)), side="left")
    stop = np.searchsorted(owner, np.arange(len(starts)), side="right")
    for i in np.flatnonzero(stop > begin).tolist():
        chosen = range(int(begin[i]), min(int(stop[i]), int(begin[i]) + HIDING_NAMES))
        result[i] = tuple(HiddenUnder(name=events.names[int(key[j] % names)], hidden_ns=int(total[j])) for j in chosen)
    return result


@once
def group_budgets(view: RankView) -> tuple[GroupBudget, ...]:
    """Return one row per process group, most exposed first; time that several groups communicate in counts for each."""
    rows = []
    for name, calls in grouped(communication(view).collectives, group_name).items():
        busy = spans.union(column(calls, "start_ns"), column(calls, "end_ns"))
        group = calls[0].group
        kind, source = kind_by_name(group), "name"
        if not kind:
            launched = column(calls, "called_ns")
            forward = pass_at(phases_of(view), launched) == FORWARD
            kind, source = kind_by_operations(calls, forward.tolist()), "operations"
        sizes = [c.size_bytes for c in calls]
        rows.append(
            GroupBudget(
                rank=view.rank,
                group=name,
                description=group.description if group else "",
                size=group.size if group else None,
                collectives=len(calls),
                size_bytes=None if None in sizes else sum(s for s in sizes if s is not None),
                comm_ns=busy.measure,
                exposed_ns=spans.subtract(busy, activity_of(view).compute).measure,
                kind=kind,
                kind_source=source if kind else "",
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.exposed_ns))
