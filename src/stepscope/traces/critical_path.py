"""The critical path of a rank: back from its end, each piece of work to the one it had to wait for.

Device work waits for the work before it on its stream, for its launch, or (after a wait call between streams) for work
on another stream: for whichever came last. The host waits where a synchronising call returned with the device, and
where a thread took over from another. O(n log n) in events; the walk itself is over runs, not over kernels.

The critical path across ranks: from rank to rank wherever one waited for another in a collective.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_path import (
    CriticalPath,
    CrossRankPath,
    PathContributor,
    PathLeg,
    PathParts,
    RankLegs,
    RankShare,
)
from stepscope.stats import spans
from stepscope.stats.spans import distinct
from stepscope.traces.activity import activity_of
from stepscope.traces.events import NONE, Ints, RankView, once
from stepscope.traces.host_line import GLOO, NEVER, OPERATOR, OTHER, RUNTIME, HostLine, stream_waits
from stepscope.traces.kernel_names import Work
from stepscope.traces.launches import launches_of
from stepscope.traces.nesting import sums

TOP = 20

_DEVICE_PARTS = {Work.COMPUTE: "compute", Work.COMMUNICATION: "communication", Work.MEMORY: "memory"}
_PARTS = tuple(PathParts.__dataclass_fields__)
_INDEX = {name.removesuffix("_ns"): i for i, name in enumerate(_PARTS)}
_KEYS = tuple(_INDEX)
_HOST_PARTS = {OPERATOR: "host_operator", RUNTIME: "host_runtime", OTHER: "host_other", GLOO: "communication"}
_PART_OF_HOST = np.array([_INDEX[_HOST_PARTS[kind]] for kind in range(4)], dtype=np.int64)
_PART_OF_WORK = np.array([_INDEX[_DEVICE_PARTS.get(w, "compute")] for w in Work], dtype=np.int64)
_COMMUNICATION = _INDEX["communication"]


@dataclass(frozen=True, slots=True)
class _OnHost:
    thread: int
    time: int


@dataclass(frozen=True, slots=True)
class _OnDevice:
    place: int  # in stream order
    leave: int  # the time at which the path leaves it


_Node = _OnHost | _OnDevice


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of the path, [low, high): on a thread, on the device (``first`` to ``last``), or waiting (``part``)."""

    low: int
    high: int
    thread: int = NONE
    first: int = NONE
    last: int = NONE
    part: str = ""


def critical_path(view: RankView) -> CriticalPath | Unavailable:
    """The path that ends with the last device work (without a device: the last host activity) of the trace.

    The parts sum to the path's length, which is the time from the trace's beginning to that end.
    """
    walk = walk_of(view)
    end = walk.end_node()
    if end is None:
        return Unavailable("nothing ran in the window")
    begin = walk.start_ns
    node, finish = end
    segments, inferred = [], 0
    at: _Node | None = node
    while at is not None:
        stretches, at, guess = walk.step(at)
        segments += stretches
        inferred += guess
        if segments[-1].low <= begin:
            break
    parts, contributors = _parts_and_contributors(walk, segments, begin, finish)
    threads = [(s.thread, s.first == NONE) for s in segments if not s.part]
    return CriticalPath(
        rank=view.rank,
        start_ns=begin,
        end_ns=finish,
        source=activity_of(view).source,
        parts=parts,
        contributors=contributors,
        switches=sum(a != b for a, b in zip(threads[1:], threads[:-1], strict=True)),
        inferred=inferred,
    )


def legs(view: RankView) -> RankLegs | Unavailable:
    """Return the path of a rank in legs from collective to collective, for ``cross_rank_path``.

    Collectives are numbered by start, as the communication events of the rank's activity are.
    """
    if activity_of(view).source != "device":
        from stepscope.traces.replay import cpu_legs

        return cpu_legs(view)
    walk = walk_of(view)
    view.made.pop(walk_of)  # as large as some columns, and no other asks for it
    end = walk.end_node()
    if end is None:
        return Unavailable("nothing ran in the trace")
    walked: dict[_Node, tuple[int | None, NDArray[np.int64]]] = {}
    comm = walk.collectives
    last = _path_leg(walk, [], end[0], walked)
    return RankLegs(
        rank=view.rank,
        end_ns=end[1],
        last=last,
        legs=tuple(_path_leg(walk, *walk.before(place)[:2], walked) for place in comm.tolist()),
        durations_ns=tuple((walk.ends[comm] - walk.starts[comm]).tolist()),
    )


def _path_leg(
    walk: Walk, link: list[_Segment], node: _Node | None, walked: dict[_Node, tuple[int | None, Ints]]
) -> PathLeg:
    """Sum up ``link`` and the path from ``node`` back to the first collective; ``walked`` keeps nodes' totals."""
    chain: list[tuple[_Node, Ints]] = []
    back_to: int | None = None
    total = np.zeros(len(_PARTS), dtype=np.int64)
    while node is not None:
        if node in walked:
            back_to, total = walked[node]
            break
        if isinstance(node, _OnDevice) and (number := walk.numbers.get(node.place)) is not None:
            back_to = number
            break
        segments, following, _ = walk.step(node)
        chain.append((node, walk.totals(segments)))
        node = following
    for visited, spent in reversed(chain):
        total = total + spent
        walked[visited] = back_to, total
    total = total + walk.totals(link)
    return PathLeg(parts=_path_parts(total), back_to=back_to)


def _path_parts(total: Ints) -> PathParts:
    return PathParts(**dict(zip(_PARTS, total.tolist(), strict=True)))


@once
def walk_of(view: RankView) -> Walk:
    return Walk(view)


class Walk:
    """One rank's device work in stream order with what each piece waited for, and its host threads."""

    def __init__(self, view: RankView) -> None:
        events, activity, launches = view.events, activity_of(view), launches_of(view)
        self.events = events
        self.host = HostLine(events)
        device = events.is_device[launches.of]
        chosen, launch = launches.of[device], launches.launch[device]
        stream = events.lane(chosen)
        order = np.lexsort((np.arange(len(chosen)), events.ts_ns[chosen], stream))
        self.device, self.launch, self.stream = chosen[order], launch[order], stream[order]
        self.starts, self.ends = events.ts_ns[self.device], events.end_ns[self.device]
        kinds = np.zeros(len(events), dtype=np.int8)
        kinds[activity.indices] = activity.work
        work = kinds[self.device]
        self.part = _PART_OF_WORK[work]
        communicates = work == Work.COMMUNICATION
        comm = np.flatnonzero(communicates)
        self.collectives = comm[np.lexsort((comm, self.starts[comm]))]
        self.numbers = {int(p): i for i, p in enumerate(self.collectives.tolist())}
        by_end = np.argsort(self.ends, kind="stable")
        self._by_end = by_end
        self._ended = self.ends[by_end]
        self.host.find_breaks(self.device[by_end], self.launch[by_end])
        self._links(communicates)
        self.start_ns = min(
            [t for t in (self.host.start_ns, int(self.starts.min()) if len(self.starts) else None) if t is not None],
            default=0,
        )

    def _links(self, communicates: NDArray[np.bool_]) -> None:
        """Find for each device event its launch's time and the place that it waited for (NONE: its launch, or nothing)."""
        n = len(self.device)
        linked = self.launch != NONE
        self.called = np.where(linked, self.events.ts_ns[np.maximum(self.launch, 0)], NEVER)
        self.called = np.minimum(self.called, self.starts)
        previous = np.arange(n) - 1
        has = np.zeros(n, dtype=bool)
        has[1:] = self.stream[1:] == self.stream[:-1]
        before = np.where(has, np.minimum(self.ends[np.maximum(previous, 0)], self.starts), NEVER)
        self.waited = np.where(has & (before > self.called), previous, NONE)
        self.cross = np.zeros(n, dtype=bool)
        self._across(np.maximum(before, self.called), previous, has)
        follows = (self.waited == previous) & has & ~self.cross
        # A run is entered anew at and after a collective, so that legs can end there.
        follows[communicates] = False
        follows[1:] &= ~communicates[:-1]
        self.run = np.maximum.accumulate(np.where(follows, 0, np.arange(n))) if n else np.zeros(0, dtype=np.int64)
        shown = self.ends.copy()
        if n > 1:
            inside = follows[1:]
            shown[:-1][inside] = np.minimum(self.ends[:-1], self.starts[1:])[inside]
        self.shown = np.maximum(shown, self.starts)
        busy = np.zeros((3, n + 1), dtype=np.int64)
        for k in range(3):
            busy[k, 1:] = np.cumsum(np.where(self.part == k, self.shown - self.starts, 0))
        self._busy = busy

    def _across(self, bound: Ints, previous: Ints, has: NDArray[np.bool_]) -> None:
        """Find work that a wait between streams held back: it waited for the last to end on any other stream that was
        launched before the wait, if that came later than its own stream and its launch.

        A wait holds back the next launch on the stream that it names, from whichever thread. Where the profiler did not
        record that stream, also the next launch of its own thread on any.
        """
        linked = np.flatnonzero(self.launch != NONE)
        if not len(linked) or len(distinct(self.stream)) < 2:
            return
        waits = stream_waits(self.events, self.launch[linked], self.stream[linked], self.part[linked] == _COMMUNICATION)
        if not len(waits.times):
            return
        earlier = np.where(has[linked], self.called[np.maximum(previous[linked], 0)], NEVER)
        last = waits.last_before(self.launch[linked], self.stream[linked])
        delayed = (last != NEVER) & (last >= earlier)
        for place, waited_ns in zip(linked[delayed].tolist(), last[delayed].tolist(), strict=True):
            other = self._last_ended(place, waited_ns)
            if other != NONE and self.ends[other] > bound[place]:
                self.waited[place] = other
                self.cross[place] = True

    def _last_ended(self, place: int, launched_by: int) -> int:
        """The last event of another stream that ended before this one began, launched by then."""
        at = int(np.searchsorted(self._ended, self.starts[place], side="right")) - 1
        for back in range(at, max(at - 64, -1), -1):
            other = int(self._by_end[back])
            if self.stream[other] == self.stream[place] or self.called[other] > launched_by:
                continue
            if self.starts[other] < self.starts[place]:
                return other
        return NONE

    def end_node(self) -> tuple[_Node, int] | None:
        """Where the path ends, and when: the last device event, else the last host activity."""
        if len(self.device):
            # What the driver moves by itself (unified memory) has no launch and is followed only where nothing else is.
            launched = self._by_end[np.isin(self.stream[self._by_end], self.stream[self.launch != NONE])]
            place = int((launched if len(launched) else self._by_end)[-1])
            return _OnDevice(place, int(self.ends[place])), int(self.ends[place])
        last = self.host.last_end()
        return None if last is None else (_OnHost(*last), last[1])

    def step(self, node: _Node) -> tuple[list[_Segment], _Node | None, int]:
        """The segments of this node, the node before it (None: the beginning), and how many edges were inferred."""
        if isinstance(node, _OnHost):
            interruption = self.host.break_before(node.thread, node.time)
            if interruption is None:
                low = min(self.start_ns, node.time)
                return [_Segment(low, node.time, thread=node.thread)], None, 0
            segment = _Segment(interruption.time, node.time, thread=node.thread)
            if interruption.device != NONE:
                return [segment], _OnDevice(int(self._by_end[interruption.device]), interruption.time), 0
            return [segment], _OnHost(interruption.thread, interruption.time), 0
        first = int(self.run[node.place])
        run = _Segment(int(self.starts[first]), node.leave, first=first, last=node.place)
        link, following, inferred = self.before(first)
        return [run, *link], following, inferred

    def before(self, place: int) -> tuple[list[_Segment], _Node | None, int]:
        """What lies between the start of a device event and the node before it, that node, and how many edges of these were
        inferred."""
        start, waited = int(self.starts[place]), int(self.waited[place])
        if waited != NONE:
            leave = min(int(self.ends[waited]), start)
            gap = [_Segment(leave, start, part="device_gap")]
            return gap, _OnDevice(waited, leave), int(self.cross[place])
        if self.launch[place] != NONE:
            called = int(self.called[place])
            thread = int(self.events.thread[self.launch[place]])
            return [_Segment(called, start, part="launch_latency")], _OnHost(thread, called), 0
        # Launched before the trace began: what it waited for is not in the file.
        low = min(self.start_ns, start)
        return ([_Segment(low, start, part="device_gap")] if low < start else []), None, 0

    def totals(self, segments: list[_Segment]) -> Ints:
        """The segments' time by part, shape (parts,)."""
        result = np.zeros(len(_PARTS), dtype=np.int64)
        for segment in segments:
            if segment.part:
                result[_INDEX[segment.part]] += segment.high - segment.low
            elif segment.thread != NONE:
                for kind, ns in enumerate(self.host.flat(segment.thread).split(segment.low, segment.high)):
                    result[_PART_OF_HOST[kind]] += ns
            else:
                first, last = segment.first, segment.last
                spent = self._busy[:, last] - self._busy[:, first]
                result[:3] += spent
                result[int(self.part[last])] += segment.high - int(self.starts[last])
                result[_INDEX["device_gap"]] += int(self.starts[last] - self.starts[first]) - int(spent.sum())
        return result


def _parts_and_contributors(
    walk: Walk, segments: list[_Segment], begin: int, finish: int
) -> tuple[PathParts, tuple[PathContributor, ...]]:
    """Parts and top contributors of the segments inside [begin, finish)."""
    amounts: Counter[tuple[str, str]] = Counter()
    on_threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    runs: list[tuple[Ints, Ints]] = []
    for s in segments:
        low, high = max(s.low, begin), min(s.high, finish)
        if high <= low:
            continue
        if s.part:
            key = "before recorded work" if s.low == walk.start_ns and s.part == "device_gap" else s.part
            amounts[s.part, key] += high - low
        elif s.thread != NONE:
            on_threads[s.thread].append((low, high))
        else:
            run = np.arange(s.first, s.last + 1)
            starts, ends = np.maximum(walk.starts[run], low), walk.shown[run]
            ends[-1] = min(s.high, finish)
            spent = np.maximum(ends, starts) - starts
            amounts["device_gap", "device_gap"] += high - low - int(spent.sum())
            runs.append((run, spent))
    if runs:
        places, on_device = map(np.concatenate, zip(*runs, strict=True))
        _add_spent(amounts, walk.events.names, walk.events.name[walk.device[places]], walk.part[places], on_device)
    names = [*walk.events.names, "outside operators"]
    for thread, covered in on_threads.items():
        flat, union = walk.host.flat(thread), spans.union(*np.array(covered, dtype=np.int64).T)
        lengths = flat.lengths_within(union)
        amounts["host_other", names[-1]] += union.measure - int(lengths.sum())
        used = np.flatnonzero(lengths > 0)
        event = flat.event[used]
        name = np.where(event == NONE, len(names) - 1, walk.events.name[np.maximum(event, 0)])
        _add_spent(amounts, names, name, _PART_OF_HOST[flat.kind[used]], lengths[used])
    by_part = dict.fromkeys(_INDEX, 0)
    for (part, _), ns in amounts.items():
        by_part[part] += ns
    total = sum(by_part.values())
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    contributors = tuple(
        PathContributor(part=part, name=name, total_ns=ns, share=ns / total if total else 0.0)
        for (part, name), ns in ranked[:TOP]
        if ns
    )
    return PathParts(**{f"{part}_ns": ns for part, ns in by_part.items()}), contributors


def _add_spent(
    amounts: Counter[tuple[str, str]], names: Sequence[str], name: NDArray[np.integer[Any]], part: Ints, spent: Ints
) -> None:
    """Add what was spent to ``amounts`` by part and name."""
    keys, inverse = np.unique(name.astype(np.int64) * len(_KEYS) + part, return_inverse=True)
    for key, ns in zip(keys.tolist(), sums(inverse, spent, len(keys)).tolist(), strict=True):
        amounts[_KEYS[key % len(_KEYS)], names[key // len(_KEYS)]] += ns


def cross_rank_path(legs: Sequence[RankLegs], matched: Sequence[MatchedCollective]) -> CrossRankPath | Unavailable:
    """Follow the path back from the end of the rank that ends last, on aligned clocks.

    At a matched collective the path goes on at the rank that arrived last (at its own when all arrived at once), and
    only what follows that is on the path; at a message, at the rank that began it last. One that is not split into
    transfer and waiting stays on its rank, whole.
    """
    by_rank = {r.rank: r for r in legs}
    if not by_rank:
        return Unavailable("no rank has a path")
    at = {(r.rank, r.position): m for m in matched for r in m.ranks}
    end = max(legs, key=lambda r: r.end_ns).rank
    rank, leg = end, by_rank[end].last
    spent: dict[int, Ints] = defaultdict(lambda: np.zeros(len(_PARTS), dtype=np.int64))
    transfer = collectives = unmatched = hops = 0
    seen: set[tuple[int, int]] = set()
    while True:
        spent[rank] += [getattr(leg.parts, name) for name in _PARTS]
        place = leg.back_to
        if place is None:
            break
        if (rank, place) in seen:
            # Matches that cross each other (A before B on one rank, after it on another) would never end.
            return Unavailable(f"the matched collectives contradict each other at rank {rank}, collective {place}")
        seen.add((rank, place))
        collectives += 1
        match = at.get((rank, place))
        entered = _last_rank_and_place(match, rank, by_rank)
        moved = None if match is None else _transfer_ns(match, rank)
        if moved is None or entered is None:
            unmatched += 1
            transfer += by_rank[rank].durations_ns[place]
        else:
            transfer += moved
            hops += entered[0] != rank
            rank, place = entered
        leg = by_rank[rank].legs[place]
    shares = tuple(RankShare(rank=r, parts=_path_parts(spent[r])) for r in sorted(spent))
    return CrossRankPath(
        end_rank=end,
        total_ns=transfer + sum(s.parts.total_ns for s in shares),
        transfer_ns=transfer,
        ranks=shares,
        collectives=collectives,
        unmatched=unmatched,
        hops=hops,
    )


def _last_rank_and_place(
    match: MatchedCollective | None, rank: int, legs: Mapping[int, RankLegs]
) -> tuple[int, int] | None:
    """Return where the path goes on: the rank that all others waited for, and the collective's place there."""
    if match is None:
        return None
    last = rank if match.last_rank is None else match.last_rank
    if match.op == "send_recv":
        last = max(match.ranks, key=lambda r: (r.start_ns, r.rank == rank)).rank
    return next(((r.rank, r.position) for r in match.ranks if r.rank == last and last in legs), None)


def _transfer_ns(match: MatchedCollective, rank: int) -> int | None:
    """Return the time that the collective takes on this rank once all have begun it: its transfer, and how much later than
    the first rank this one leaves it; for a message, the time until this rank is done with it. None where it is not split.
    """
    own_end = next(r.end_ns for r in match.ranks if r.rank == rank)
    if match.op == "send_recv" and len(match.ranks) == 2:
        return max(0, own_end - max(r.start_ns for r in match.ranks))
    if match.transfer_ns is None:
        return None
    return match.transfer_ns + own_end - min(r.end_ns for r in match.ranks)
