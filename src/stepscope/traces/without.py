"""What a capture would take if late ranks were as fast as their peers: the measured ranks replayed with their work replaced.

A rank enters a collective where it had computed as much, and computes no further before the end of one that it waited
for; a collective takes as long as it did from when its last rank is there. Lin et al., Understanding Stragglers in Large
Model Training Using What-if Analysis, OSDI 2025, section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_collectives import (
    JobCollectives,
    MatchedCollective,
    RankCollective,
    RankCommunication,
    RankWaiting,
)
from stepscope.stats import spans
from stepscope.traces.collective_calls import TOGETHER
from stepscope.traces.events import Ints, column
from stepscope.traces.waits import spans_of

QUEUED_NS = 10_000
"""A collective that begins within this of the end of the one before on its stream stood behind it."""

SOON_NS = 100_000
"""Computation that begins so long before a collective ends waited for it: clocks of hosts and devices differ."""

Meeting = int
"""Place of an instance among the job's."""

Call = tuple[int, int]
"""Rank, and position in its collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    """Where a rank enters a collective, or waits for its end. work_ns: its own time since the action before it."""

    position: int
    waits: bool
    work_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """One rank's capture. begins_ns: on the job's clock. tail_ns: its own time after the last action. behind: by position,
    the collective of its stream behind which it stood."""

    begins_ns: int
    actions: tuple[_Action, ...]
    tail_ns: int
    behind: Mapping[int, int]

    @property
    def work_ns(self) -> int:
        return sum(action.work_ns for action in self.actions) + self.tail_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The capture replayed, ns: as it was measured, and with the late ranks as fast as their peers."""

    measured_ns: int
    without_ns: int

    @property
    def saved_ns(self) -> int:
        return max(0, self.measured_ns - self.without_ns)


def without_lateness(
    ranks: Sequence[RankCommunication], job: JobCollectives, late: Mapping[int, Sequence[int]]
) -> Replay | None:
    """Replay the capture with the own time of late ranks replaced by the median of their peers'. O(n log n) in collectives.

    None where a rank has no window, or its collectives cannot be put in an order that all ranks keep.
    """
    if any(r.window_ns is None for r in ranks):
        return None
    look = {r.rank: r for r in ranks}
    offsets = _offsets(job, look)
    scripts = {number: _script(r, offsets.get(number, 0)) for number, r in look.items()}
    measured = _Run(look, job.instances, scripts).length_ns()
    replaced = {
        rank: _replaced(look, scripts, rank, [p for p in peers if p in scripts and p not in late])
        for rank, peers in late.items()
    }
    without = _Run(look, job.instances, {**scripts, **replaced}).length_ns()
    return None if measured is None or without is None else Replay(measured_ns=measured, without_ns=without)


def _offsets(job: JobCollectives, look: Mapping[int, RankCommunication]) -> dict[int, int]:
    """Return by rank what to add to its own clock for the job's."""
    offsets: dict[int, int] = {}
    for m in job.instances:
        for part in m.ranks:
            if part.rank not in offsets:
                offsets[part.rank] = part.start_ns - look[part.rank].collectives[part.position].start_ns
    return offsets


def _script(rank: RankCommunication, offset: int) -> _Script:
    low, high = rank.window_ns or (0, 0)
    starts, ends = column(rank.collectives, "start_ns"), column(rank.collectives, "end_ns")
    stalls = _stalls(spans_of(rank.exposed), np.sort(ends))
    awaited = np.zeros(len(ends), dtype=bool)
    if len(stalls) and len(ends):
        place = np.searchsorted(stalls.starts, ends, side="left") - 1
        awaited = (place >= 0) & (ends <= stalls.ends[np.maximum(place, 0)] + SOON_NS)
    at = np.concatenate([starts, ends[awaited]])
    positions = np.concatenate([np.arange(len(starts)), np.flatnonzero(awaited)])
    waits = np.concatenate([np.zeros(len(starts), dtype=bool), np.ones(int(awaited.sum()), dtype=bool)])
    order = np.lexsort((~waits, at))  # what ends then was waited for before the next begins
    at = np.clip(at[order], low, high)
    progress = at - low - spans.covered_before(stalls, at)
    work = np.diff(progress, prepend=0)
    whole = high - low - stalls.measure
    actions = tuple(
        _Action(position=position, waits=wait, work_ns=ns)
        for position, wait, ns in zip(positions[order].tolist(), waits[order].tolist(), work.tolist(), strict=True)
    )
    return _Script(
        begins_ns=low + offset,
        actions=actions,
        tail_ns=max(0, whole - int(progress[-1]) if len(progress) else whole),
        behind=_behind(rank.collectives),
    )


def _stalls(exposed: spans.Spans, ends: Ints) -> spans.Spans:
    """Return when the rank waited: from where its computation stops to the end of the last collective in that pause."""
    if not len(exposed) or not len(ends):
        return spans.EMPTY
    last = np.searchsorted(ends, exposed.ends + SOON_NS, side="right") - 1
    until = np.minimum(np.where(last >= 0, ends[np.maximum(last, 0)], 0), exposed.ends)
    waited = until > exposed.starts
    return spans.union(exposed.starts[waited], until[waited])


def _behind(collectives: Sequence[RankCollective]) -> dict[int, int]:
    before: dict[int | None, int] = {}
    behind: dict[int, int] = {}
    for position, c in enumerate(collectives):
        last = before.get(c.stream)
        if last is not None and c.stream is not None and 0 <= c.start_ns - collectives[last].end_ns <= QUEUED_NS:
            behind[position] = last
        before[c.stream] = position
    return behind


def _replaced(
    look: Mapping[int, RankCommunication], scripts: Mapping[int, _Script], rank: int, peers: Sequence[int]
) -> _Script:
    """The rank's capture with its peers' own time: action by action where they do the same, else as much of all of it."""
    own = scripts[rank]
    kinds = _kinds(look[rank], own)
    alike = [scripts[peer] for peer in peers if _kinds(look[peer], scripts[peer]) == kinds]
    if alike:
        work = [median(row) for row in zip(*([a.work_ns for a in script.actions] for script in alike), strict=True)]
        tail = median(script.tail_ns for script in alike)
    else:
        factor = median(scripts[peer].work_ns for peer in peers) / max(1, own.work_ns)
        work, tail = [a.work_ns * factor for a in own.actions], own.tail_ns * factor
    return _Script(
        begins_ns=own.begins_ns,
        actions=tuple(
            _Action(position=a.position, waits=a.waits, work_ns=round(ns))
            for a, ns in zip(own.actions, work, strict=True)
        ),
        tail_ns=round(tail),
        behind=own.behind,
    )


def _kinds(rank: RankCommunication, script: _Script) -> list[tuple[str, str | None, bool]]:
    calls = rank.collectives
    return [(calls[a.position].op, calls[a.position].direction, a.waits) for a in script.actions]


class _Run:
    """One replay. Times on the job's clock, ns."""

    def __init__(
        self,
        look: Mapping[int, RankCommunication],
        instances: Sequence[MatchedCollective],
        scripts: Mapping[int, _Script],
    ) -> None:
        self._look, self._instances, self._scripts = look, instances, scripts
        self._meeting = {(p.rank, p.position): at for at, m in enumerate(instances) for p in m.ranks}
        self._entered: dict[Meeting, dict[int, int]] = defaultdict(dict)
        self._ended: dict[Call, int] = {}
        self._queued: dict[Call, tuple[Call, int]] = {}  # what stands behind a call, and since when
        self._now = {rank: script.begins_ns for rank, script in scripts.items()}
        self._next = dict.fromkeys(scripts, 0)
        self._ready = list(scripts)

    def length_ns(self) -> int | None:
        """From the first rank's begin to the last one's end; None where ranks wait for each other in a circle."""
        blocked: dict[Call, int] = {}
        while self._ready:
            rank = self._ready.pop()
            script = self._scripts[rank]
            while self._next[rank] < len(script.actions):
                action = script.actions[self._next[rank]]
                call = (rank, action.position)
                if action.waits and call not in self._ended:
                    blocked[call] = rank
                    break
                self._next[rank] += 1
                self._now[rank] += action.work_ns
                if action.waits:
                    self._now[rank] = max(self._now[rank], self._ended[call])
                else:
                    for done in self._enter(rank, action.position, self._now[rank]):
                        if done in blocked:
                            self._ready.append(blocked.pop(done))
        if any(self._next[rank] < len(script.actions) for rank, script in self._scripts.items()):
            return None
        ends = [self._now[rank] + script.tail_ns for rank, script in self._scripts.items()]
        return max([*ends, *self._ended.values()]) - min(script.begins_ns for script in self._scripts.values())

    def _enter(self, rank: int, position: int, at: int) -> list[Call]:
        """Note that the rank is there; return the calls that end with it, on any rank, and with what stood behind them."""
        entering, finished = [((rank, position), at)], list[Call]()
        while entering:
            call, at = entering.pop()
            behind = self._behind(call)
            if behind is not None and behind not in self._ended:
                self._queued[behind] = call, at
                continue
            for done, end in self._ends(call, at if behind is None else max(at, self._ended[behind])).items():
                self._ended[done] = end
                finished.append(done)
                if done in self._queued:
                    entering.append(self._queued.pop(done))
        return finished

    def _behind(self, call: Call) -> Call | None:
        rank, position = call
        before = self._scripts[rank].behind.get(position)
        return None if before is None else (rank, before)

    def _ends(self, call: Call, at: int) -> dict[Call, int]:
        """Return when calls end that this rank's coming ends."""
        m, entered = self._instances[self._meeting[call]], self._entered[self._meeting[call]]
        entered[call[0]] = at
        came_last, ends = max(p.start_ns for p in m.ranks), dict[Call, int]()
        if len(entered) == len(m.ranks):
            met = max(entered.values())
            for p in m.ranks:
                if not self._leaves_alone(p, m):
                    ends[p.rank, p.position] = max(met, met + p.end_ns - came_last)
        own = next(p for p in m.ranks if p.rank == call[0])
        if self._leaves_alone(own, m):
            ends[call] = at + own.end_ns - own.start_ns
        return ends

    def _leaves_alone(self, part: RankWaiting, m: MatchedCollective) -> bool:
        """Whether the rank left before the others came: the sender of a buffered message, the root of a broadcast."""
        if m.op in TOGETHER or self._look[part.rank].collectives[part.position].direction == "recv":
            return False
        return len(m.ranks) > 1 and part.end_ns < max(p.start_ns for p in m.ranks)
