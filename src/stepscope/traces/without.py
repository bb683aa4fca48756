"""What a capture would take if late ranks were as fast as their peers: the measured ranks replayed with their work replaced.

A rank enters a collective where it had computed as much, and computes no further before the end of one that it waited
for; a collective takes as long as it did from when its last rank is there. Lin et al., Understanding Stragglers in Large
Model Training Using What-if Analysis, OSDI 2025, section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepscope.core.dataclass import record
from stepscope.records.trace_collectives import (
    JobCollectives,
    MatchedCollective,
    RankCollective,
    RankCommunication,
    RankWaiting,
)
from stepscope.stats import spans
from stepscope.traces.alignment import corrected
from stepscope.traces.collective_calls import TOGETHER
from stepscope.traces.events import column
from stepscope.traces.replay import RankProgress, waited_until
from stepscope.traces.waits import spans_of

QUEUED_NS = 10_000
"""A collective that begins within this of the end of the one before on its stream stood behind it."""

SOON_NS = 100_000
"""Computation that begins so long before a collective ends waited for it: clocks of hosts and devices differ."""

Call = tuple[int, int]
"""Rank, and position in its collectives."""


@record
class _Script:
    """One rank's capture. begins_ns: on the job's clock. actions: positions of the collectives that it enters, or (True)
    waits for. kinds: of these. work_ns: its own time before each, and after the last. behind: by position, the collective
    of its stream behind which it stood."""

    begins_ns: int
    actions: Sequence[tuple[int, bool]]
    kinds: Sequence[tuple[str, str | None, bool]]
    work_ns: Sequence[int]
    behind: Mapping[int, int]


@record
class _Part:
    """One rank's part in a collective: took_ns after its last rank came, this one leaves. alone: after it came itself."""

    meeting: int
    ranks: int
    alone: bool
    took_ns: int


def saved_ns(ranks: Sequence[RankCommunication], job: JobCollectives, late: Mapping[int, Sequence[int]]) -> int | None:
    """Return what the capture takes less with the own time of late ranks replaced by the median of their peers', both
    replayed. O(n log n) in collectives.

    None where a rank has no window, or its collectives cannot be put in an order that all ranks keep.
    """
    fits = {fit.rank: fit for fit in job.clocks.fits}
    scripts: dict[int, _Script] = {}
    for r in ranks:
        if r.window_ns is None:
            return None
        scripts[r.rank] = _rank_script(r, *r.window_ns, begins_ns=corrected(fits[r.rank], r.window_ns[0]))
    calls = {r.rank: r.collectives for r in ranks}
    parts = {
        (p.rank, p.position): _moved_part(p, calls[p.rank][p.position], m, meeting=meeting, last=last)
        for meeting, m in enumerate(job.instances)
        for last in [max(p.start_ns for p in m.ranks)]
        for p in m.ranks
    }
    faster = {
        rank: _script_with_peers_time(scripts[rank], [scripts[p] for p in peers if p in scripts and p not in late])
        for rank, peers in late.items()
    }
    measured, without = (_length_ns(chosen, parts) for chosen in (scripts, scripts | faster))
    return None if measured is None or without is None else max(0, measured - without)


def _rank_script(rank: RankCommunication, low: int, high: int, *, begins_ns: int) -> _Script:
    """Return what a rank does between low and high in order: calls and waits, on its own time."""
    calls = rank.collectives
    starts, ends = column(calls, "start_ns"), column(calls, "end_ns")
    exposed = spans_of(rank.exposed)
    late = spans.Spans(exposed.starts, exposed.ends + SOON_NS)
    until = np.minimum(waited_until(late, ends), exposed.ends)
    own = RankProgress(low=low, high=high, waits=spans.union(exposed.starts, until))
    awaited = np.flatnonzero(spans.holds(spans.Spans(own.waits.starts, own.waits.ends + SOON_NS), ends - 1))
    at = np.concatenate([starts, ends[awaited]])
    positions = np.concatenate([np.arange(len(calls)), awaited])
    waits = np.arange(len(at)) >= len(calls)
    order = np.lexsort((~waits, at))  # what ends then was waited for before the next begins
    actions = list(zip(positions[order].tolist(), waits[order].tolist(), strict=True))
    return _Script(
        begins_ns=begins_ns,
        actions=actions,
        kinds=[(calls[position].op, calls[position].direction, waits) for position, waits in actions],
        work_ns=np.diff(own.at(at[order]), prepend=0, append=own.length_ns).tolist(),
        behind=_queued_behind(calls),
    )


def _queued_behind(collectives: Sequence[RankCollective]) -> dict[int, int]:
    """Return the place of each collective that the stream began as soon as another ended -> that one's place."""
    before: dict[int | None, int] = {}
    behind: dict[int, int] = {}
    for position, c in enumerate(collectives):
        last = before.get(c.stream)
        if last is not None and c.stream is not None and 0 <= c.start_ns - collectives[last].end_ns <= QUEUED_NS:
            behind[position] = last
        before[c.stream] = position
    return behind


def _moved_part(part: RankWaiting, call: RankCollective, m: MatchedCollective, *, meeting: int, last: int) -> _Part:
    """Return its part. It leaves before the others come as the sender of a buffered message, or the root of a broadcast."""
    alone = len(m.ranks) > 1 and m.op not in TOGETHER and call.direction != "recv" and part.end_ns < last
    took = part.end_ns - part.start_ns if alone else max(0, part.end_ns - last)
    return _Part(meeting=meeting, ranks=len(m.ranks), alone=alone, took_ns=took)


def _script_with_peers_time(own: _Script, peers: Sequence[_Script]) -> _Script:
    """The rank's capture with its peers' own time: action by action where they do the same, else as much of all of it."""
    alike = [peer.work_ns for peer in peers if peer.kinds == own.kinds]
    if alike:
        work = [median(row) for row in zip(*alike, strict=True)]
    else:
        factor = median(sum(peer.work_ns) for peer in peers) / max(1, sum(own.work_ns))
        work = [ns * factor for ns in own.work_ns]
    return replace(own, work_ns=[round(ns) for ns in work])


def _length_ns(scripts: Mapping[int, _Script], parts: Mapping[Call, _Part]) -> int | None:
    """Replay the ranks from the first one's begin to the last one's end; None where they wait for each other in a circle."""
    entered: dict[int, dict[Call, int]] = defaultdict(dict)
    ended: dict[Call, int] = {}
    queued: dict[Call, tuple[Call, int]] = {}  # what stands behind a call, and since when
    blocked: dict[Call, int] = {}
    finished: list[int] = []

    def enter(call: Call, at: int) -> None:
        """Note that the rank is there; with it calls end, on any rank, and what stood behind them begins."""
        entering = [(call, at)]
        while entering:
            call, at = entering.pop()
            before = scripts[call[0]].behind.get(call[1])
            if before is not None:
                behind = call[0], before
                if behind not in ended:
                    queued[behind] = call, at
                    continue
                at = max(at, ended[behind])
            part = parts[call]
            there = entered[part.meeting]
            there[call] = at
            ends = {call: at} if part.alone else {}
            if len(there) == part.ranks:
                met = max(there.values())
                ends |= {other: met for other in there if not parts[other].alone}
            for done, since in ends.items():
                ended[done] = since + parts[done].took_ns
                if done in queued:
                    entering.append(queued.pop(done))
                if done in blocked:
                    ready.append(blocked.pop(done))

    def going(rank: int, script: _Script) -> Iterator[Call]:
        """Let the rank go on, and yield calls that it waits for."""
        now = script.begins_ns
        for (position, waits), work in zip(script.actions, script.work_ns, strict=False):
            call, now = (rank, position), now + work
            if not waits:
                enter(call, now)
                continue
            if call not in ended:
                yield call
            now = max(now, ended[call])
        finished.append(now + script.work_ns[-1])

    runs = {rank: going(rank, script) for rank, script in scripts.items()}
    ready = list(runs)
    while ready:
        rank = ready.pop()
        if (call := next(runs[rank], None)) is not None:
            blocked[call] = rank
    if len(finished) < len(runs):
        return None
    return max([*finished, *ended.values()]) - min(script.begins_ns for script in scripts.values())
