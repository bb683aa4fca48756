"""The tables of a job that are made of the events of its traces: one by one, by their launch, over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.report.frame import Frame, Values, joined, stacked
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints, RankView

if TYPE_CHECKING:
    from stepscope.results.evidence import TraceEvidence
    from stepscope.traces.nesting import Nest
    from stepscope.traces.sections import StatedClass

Columns = Mapping[str, Values]

FULL = 1024
"""Work that waits on a stream of CUDA from which on the next launch waits for room (HolisticTraceAnalysis' limit, too)."""


def event_tables(traces: Sequence[TraceEvidence], classes: Sequence[StatedClass]) -> Mapping[str, Callable[[], Frame]]:
    """Return the tables by name; the files are read once, when the first of the tables is made."""
    views = cache(lambda: {trace.name: tuple(_views(trace, classes)) for trace in traces})
    return {name: partial(_made, name, table, views) for name, table in TABLES.items()}


def _views(trace: TraceEvidence, classes: Sequence[StatedClass]) -> Iterator[RankView]:
    from stepscope.traces.load import load_traces
    from stepscope.traces.sections import Wanted

    ranks = {rank.facts.file: rank.facts.rank for rank in trace.summary.ranks}
    several = Counter(rank.facts.file for rank in trace.summary.ranks)
    stated = {file: rank for file, rank in ranks.items() if several[file] == 1}
    for rank in load_traces(tuple(ranks), ranks=stated).ranks:
        yield RankView(rank, Wanted(classes=tuple(classes)))


def _made(name: str, table: EventTable, views: Callable[[], Mapping[str, Sequence[RankView]]]) -> Frame:
    def of(view: RankView) -> Frame:
        columns = table.columns(view)
        rows = len(next(iter(columns.values()), ()))
        whole: Columns = {"rank": np.full(rows, view.rank), **columns}
        return Frame(
            key=name, title=table.title, columns=whole, units={k: table.units[k] for k in whole if k in table.units}
        )

    return joined("capture", {capture: stacked(map(of, ranks)) for capture, ranks in views().items()})


def _events(view: RankView) -> Columns:
    """All events, in the order of the file."""
    events = view.events
    kinds = [category.name.lower() for category in Category]
    threads = [" ".join(thread) for thread in events.threads]
    numbers = ("ts_ns", "dur_ns", "stream", "device", "correlation", "external_id")
    return {
        "category": [kinds[code] for code in events.category.tolist()],
        "name": _names(events, events.name),
        "thread": [threads[code] for code in events.thread.tolist()],
        **{name: getattr(events, name) for name in numbers},
    }


def _device_events(view: RankView) -> Columns:
    """Kernels and copies with their operator, annotation and launch."""
    from stepscope.traces.classes import work_of
    from stepscope.traces.kernel_names import Work

    events, work, call, owner, tree = _launched(view)
    linked = call != NONE
    kinds = [kind.name.lower() for kind in Work]
    return {
        "name": _names(events, events.name[work]),
        "work": [kinds[code] for code in work_of(view)[work].tolist()],
        **{name: getattr(events, name)[work] for name in ("stream", "device", "correlation", "ts_ns", "dur_ns")},
        "size": [events.copied_bytes.get(index) for index in work.tolist()],
        "operator": _names_at(events, tree, owner),
        "annotation": _annotations(view, work),
        "call": _names(events, events.name[call], linked),
        "call_ts_ns": _where(events.ts_ns[call], linked),
        "call_dur_ns": _where(events.dur_ns[call], linked),
        "delay_ns": _where(events.ts_ns[work] - events.ts_ns[call], linked),
    }


def _launched(view: RankView) -> tuple[Events, Ints, Ints, Ints, Nest]:
    """Return the rank's events, those of the device, the launch of each, and its operator as a place in the tree of them."""
    from stepscope.traces.launches import launches_of
    from stepscope.traces.operators import links_of

    launches, links = launches_of(view), links_of(view)
    device = view.events.is_device[launches.of]
    return view.events, launches.of[device], launches.launch[device], links.owner[device], links.nest


def _annotations(view: RankView, work: Ints) -> Values:
    """Return the innermost annotation of each event: as the device's own track has it, else the one around its launch."""
    from stepscope.traces.modules import launched_inside
    from stepscope.traces.nesting import nest_events

    events, owner = view.events, np.full(len(view.events), NONE, dtype=np.int64)
    if len(tracks := events.where(Category.GPU_ANNOTATION)):
        tree = nest_events(events, tracks)
        owner[work] = tree.innermost(events.thread[work].astype(np.int64), events.ts_ns[work])
    else:
        tree = nest_events(events, events.where(Category.USER_ANNOTATION))
        inside, around = launched_inside(view, tree)
        owner[inside[::-1]] = around[::-1]  # an event that is there twice has that of its own thread
    return _names_at(events, tree, owner[work])


def _operator_kernels(view: RankView) -> Columns:
    """The sequences of kernels and copies that each operator launches, with how long it takes to the first launch and its
    start."""
    events, work, call, owner, tree = _launched(view)
    calls: dict[int, list[int]] = defaultdict(list)
    for place in np.argsort(events.ts_ns[call], kind="stable").tolist():
        if owner[place] != NONE and events.category[work[place]] != Category.MEMSET:
            calls[int(owner[place])].append(place)
    alike: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for position, places in calls.items():
        names = " → ".join(events.name_of(int(work[place])) for place in places)
        launched, first = int(events.ts_ns[call[places[0]]]), int(events.ts_ns[work[places[0]]])
        times = launched - int(tree.starts[position]), first - launched
        alike[events.name_of(int(tree.index[position])), names].append(times)
    rows = sorted(alike.items(), key=lambda row: -len(row[1]))
    means = np.array([np.mean(times, axis=0) for _, times in rows]).reshape(-1, 2)
    return {
        "operator": [operator for (operator, _), _ in rows],
        "kernels": [kernels for (_, kernels), _ in rows],
        "count": [len(times) for _, times in rows],
        "launch_delay_ns": means[:, 0],
        "start_delay_ns": means[:, 1],
    }


def _queue_of(view: RankView) -> Iterator[tuple[tuple[int, int], Ints, Ints, Ints]]:
    """Yield for each (device, stream) when what waits on it changes, its number from then on, and when work was launched."""
    from stepscope.traces.idle import queue_over_time

    events, work, call, *_ = _launched(view)
    work, call = work[call != NONE], call[call != NONE]
    lanes = events.lane(work)
    for lane in distinct(lanes).tolist():
        here = lanes == lane
        launched = events.ts_ns[call[here]]
        yield divmod(lane, 2**31), *queue_over_time(launched, events.ts_ns[work[here]]), launched


def _queue(view: RankView) -> Columns:
    """What is launched on a stream and not yet started: one row per change."""
    rows = tuple(_queue_of(view))
    sizes = [len(times) for _, times, *_ in rows]
    return {
        "device": np.repeat(_ints(place[0] for place, *_ in rows), sizes),
        "stream": np.repeat(_ints(place[1] for place, *_ in rows), sizes),
        "ts_ns": np.concatenate([_ints(()), *(times for _, times, *_ in rows)]),
        "length": np.concatenate([_ints(()), *(length for _, _, length, _ in rows)]),
    }


def _queues(view: RankView) -> Columns:
    """The queue of each stream: its mean over time and its longest, and how long it was full."""
    rows = []
    for place, times, length, launched in _queue_of(view):
        lasting = np.append(np.diff(times), [0] * bool(len(times)))
        whole, full = int(lasting.sum()), int(lasting[length >= FULL].sum())
        mean = float((lasting * length).sum() / whole) if whole else 0.0
        rows.append((*place, len(launched), mean, int(length.max(initial=0)), full, full / whole if whole else 0.0))
    names = ("device", "stream", "launched", "mean", "longest", "full_ns", "full_share")
    return {name: [row[column] for row in rows] for column, name in enumerate(names)}


def _copy_rate(view: RankView) -> Columns:
    """Bytes per second of the copies that run: one row per change, for each direction by itself.

    In a file of whole microseconds the rate is the one that the profiler recorded, which knows the time more exactly.
    """
    from stepscope.traces.kernels import copy_kind

    events = view.events
    copies = [index for index in events.copied_bytes if events.is_device[index] and events.dur_ns[index]]
    recorded: dict[int, float] = {}
    if copies and not (events.dur_ns[copies] % 1000).any():
        arguments = [event.get("args", {}) for event in _raw(view, RATE)]
        recorded = {args["correlation"]: args[RATE] * 1e9 for args in arguments if {"correlation", RATE} <= args.keys()}
    kinds: dict[str, list[int]] = defaultdict(list)
    for index in copies:
        kinds[copy_kind(events.name_of(index))[0]].append(index)
    columns: dict[str, list[Any]] = {"kind": [], "ts_ns": [], "rate": []}
    for kind, chosen in sorted(kinds.items()):
        rates = np.array([recorded.get(int(events.correlation[i]), _rate(events, i)) for i in chosen])
        times = np.concatenate([events.ts_ns[chosen], events.end_ns[chosen]])
        order = np.argsort(times, kind="stable")
        running = np.cumsum(np.repeat([1, -1], len(chosen))[order])
        rate = np.where(running > 0, np.cumsum(np.concatenate([rates, -rates])[order]), 0.0)
        last = np.append(np.diff(times[order]) > 0, True)
        columns["kind"] += [kind] * int(last.sum())
        columns["ts_ns"] += times[order][last].tolist()
        columns["rate"] += rate[last].tolist()
    return columns


def _rate(events: Events, copy: int) -> float:
    return events.copied_bytes[copy] / float(events.dur_ns[copy]) * 1e9


def _raw(view: RankView, mark: str) -> Iterator[dict[str, Any]]:
    """Read the rank's file again, for what is kept of no event: the events of blocks that hold the mark."""
    import msgspec

    from stepscope.traces.envelope import EventStream
    from stepscope.traces.source import ByteSource

    if ".json" in view.trace.path.suffixes:
        for block in EventStream(ByteSource(view.trace.path)):
            if mark.encode() in block:
                yield from msgspec.json.decode(b"[" + block + b"]")


RATE = "memory bandwidth (GB/s)"
RANGE = "cuda_profiler_range"
"""``cat`` of the kernels that CUPTI's range profiler counted in."""


def _counters(view: RankView) -> Columns:
    """Kernels with the counters of the device (CUPTI's range profiler), and the operators around their launch.

    A range bears no number of a launch: they are matched in order, where there are as many.
    """
    from stepscope.traces.nesting import nest_events

    events = view.events
    other = bool((events.category == Category.OTHER).any())
    ranges = [event for event in _raw(view, RANGE) if event.get("cat") == RANGE] if other else []
    ranges.sort(key=lambda event: float(event["ts"]))
    if not ranges:
        return {}
    calls = events.by_start(events.of(Category.RUNTIME) & events.begins("cudaLaunchKernel"))
    tree = nest_events(events, events.where(Category.CPU_OP))
    owner = np.full(len(ranges), NONE, dtype=np.int64)
    if len(calls) == len(ranges):
        owner = tree.innermost(events.thread[calls].astype(np.int64), events.ts_ns[calls])
    top = owner.copy()
    while (above := np.where(top != NONE, tree.parent[top], NONE) != NONE).any():
        top[above] = tree.parent[top[above]]
    names = dict.fromkeys(name for event in ranges for name in event.get("args", {}))
    return {
        "kernel": [event.get("name") for event in ranges],
        "operator": _names_at(events, tree, owner),
        "top_operator": _names_at(events, tree, top),
        **{name: [event.get("args", {}).get(name) for event in ranges] for name in names},
    }


def _ints(values: Any) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _names(events: Events, codes: NDArray[Any], linked: NDArray[np.bool_] | None = None) -> Values:
    names = [events.names[code] for code in codes.tolist()]
    return (
        names
        if linked is None
        else [name if there else None for name, there in zip(names, linked.tolist(), strict=True)]
    )


def _names_at(events: Events, tree: Nest, at: Ints) -> Values:
    """Return the names of what stands at these places of a tree; None where there is none."""
    if not len(tree):
        return [None] * len(at)
    return _names(events, events.name[tree.index[at]], at != NONE)


def _where(values: Ints, linked: NDArray[np.bool_]) -> Values:
    return (
        values
        if linked.all()
        else [v if there else None for v, there in zip(values.tolist(), linked.tolist(), strict=True)]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTable:
    """One table: of each rank's events its columns, and their units."""

    title: str
    columns: Callable[[RankView], Columns]
    units: Mapping[str, str]


def _table(title: str, columns: Callable[[RankView], Columns], *times: str, **units: str) -> EventTable:
    return EventTable(title=title, columns=columns, units=dict.fromkeys((f"{name}_ns" for name in times), "ns") | units)


TABLES: Mapping[str, EventTable] = {
    "events": _table("Events", _events, "ts", "dur"),
    "device_events": _table(
        "Kernels and copies", _device_events, "ts", "dur", "call_ts", "call_dur", "delay", size="bytes"
    ),
    "operator_kernels": _table("Kernels by operator", _operator_kernels, "launch_delay", "start_delay"),
    "queue": _table("Queue over time", _queue, "ts"),
    "queues": _table("Queues of the streams", _queues, "full"),
    "copy_rate": _table("Copy rate over time", _copy_rate, "ts", rate="1/s"),
    "counters": _table("Counters of kernels", _counters),
}
