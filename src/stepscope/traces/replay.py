"""A rank's steps as progress and collectives: when each was ready, and from where on computation waited for it.

``RankProgress`` is what the prediction from traces and the gain of a straggler (``without``) both replay.

The path of a CPU rank in legs from collective to collective: back along the training thread to where it last waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import grouped
from stepscope.records.prediction import RankStep, StepCall
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_path import PathLeg, PathParts, RankLegs
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import activity_of
from stepscope.traces.collective_calls import REDUCTIONS
from stepscope.traces.collectives import communication
from stepscope.traces.events import NONE, Ints, RankView, column
from stepscope.traces.kernel_names import Work
from stepscope.traces.launches import computed_before, launches_of
from stepscope.traces.steps import BACKWARD, pass_at, phases_of, step_budgets

WAITED_NS = {"device": 20_000, "cpu_spans": 200_000}
"""A shorter pause of computation is a launch, or the interpreter between two operators, whatever ends in it."""

RESUMED_WITHIN = 0.1
"""Computation that goes on this soon after a collective's end, as a share of the pause, waited for it."""

_BESIDE = 0.05  # of its own time, by which a collective must overlap the one before to run beside it


def rank_steps(view: RankView) -> tuple[RankStep, ...]:
    """Every marked step of the rank.

    Computation waited for a collective that ends while it pauses, if what comes next had been launched by then, or begins
    at once. A collective that ends under computation was needed later, how much later no trace says: a reduction where the
    last one of its kind is; a gather where the computation starts that the host launches after the next gather of its pass
    (prefetched, the next one is launched just before the unit computes; on CPUs: where that one starts); others as they end.
    """
    activity, collectives = activity_of(view), communication(view).collectives
    of_step = grouped(range(len(collectives)), lambda position: collectives[position].step)
    ready = _ready_ns(view)
    own = spans.join(activity.compute, activity.memory)
    launched = _starts_and_launches(view)
    used = _first_use_ns(collectives, phases_of(view), launched)
    rows = []
    for step in step_budgets(view):
        low, high = step.start_ns, step.start_ns + step.parts.window_ns
        if high <= low:
            continue
        positions = sorted(of_step.get(step.step, ()), key=lambda p: _call_and_start(collectives[p]))
        calls = [collectives[p] for p in positions]
        ends = np.minimum(column(calls, "end_ns"), high)
        waits = _wait_spans_in(spans.gaps(own, low=low, high=high), ends, launched, activity.source)
        progress = RankProgress(low=low, high=high, waits=waits)
        rows.append(
            RankStep(
                rank=view.rank,
                step=step.step,
                window_ns=high - low,
                length_ns=progress.length_ns,
                compute_ns=step.parts.compute_ns,
                copies_ns=step.parts.exposed_memory_ns,
                lanes=_lane_count(calls),
                calls=_step_calls(positions, calls, ready[positions], used[positions], progress),
            )
        )
    return tuple(rows)


@record
class RankProgress:
    """The time from low to high that a rank does not spend waiting for collectives."""

    low: int
    high: int
    waits: Spans

    @property
    def length_ns(self) -> int:
        return self.high - self.low - self.waits.measure

    def at(self, times: Ints) -> Ints:
        times = np.clip(times, self.low, self.high)
        return times - self.low - spans.covered_before(self.waits, times)

    def awaited(self, ends: Ints) -> NDArray[np.bool_]:
        """Whether computation waited for what ends then: inside a wait, or with it."""
        return spans.holds(self.waits, ends - 1)


def waited_until(pauses: Spans, ends: Ints) -> Ints:
    """Return the last of these ends in each pause of computation, its start where there is none."""
    ends = np.append(np.sort(ends), np.iinfo(np.int64).min)
    return np.maximum(ends[np.searchsorted(ends[:-1], pauses.ends, side="right") - 1], pauses.starts)


def _step_calls(
    positions: Sequence[int], collectives: Sequence[RankCollective], ready: Ints, used: Ints, own: RankProgress
) -> tuple[StepCall, ...]:
    """Return the calls of a step on the rank's own time: from when they could begin, until when their result is needed."""
    ended = column(collectives, "end_ns")
    done = own.at(ended)
    needed = done.copy()
    for i in np.flatnonzero(~own.awaited(ended)).tolist():
        if collectives[i].op in REDUCTIONS:
            alike = [
                j for j, c in enumerate(collectives) if (c.op, c.group) == (collectives[i].op, collectives[i].group)
            ]
            needed[i] = max(int(done[j]) for j in alike)
        elif used[i] != NONE:
            needed[i] = max(int(done[i]), int(own.at(used[i : i + 1])[0]))
    at = np.minimum(own.at(ready), needed)
    return tuple(
        StepCall(position=position, ready_ns=int(r), needed_ns=int(n), duration_ns=c.duration_ns)
        for position, r, n, c in zip(positions, at, needed, collectives, strict=True)
    )


def _wait_spans_in(pauses: Spans, ends: Ints, launched: tuple[Ints, Ints] | None, source: str) -> Spans:
    """Find waits: from where computation pauses to the end of the last collective in that pause, if it waited for it."""
    until = waited_until(pauses, ends)
    soon = pauses.ends - until <= RESUMED_WITHIN * (pauses.ends - pauses.starts)
    if launched is not None:
        starts, calls = launched
        following = np.searchsorted(starts, pauses.ends, side="left")
        soon |= np.append(calls, np.iinfo(np.int64).max)[following] < until
    kept = soon & (until - pauses.starts >= WAITED_NS[source])
    return spans.union(pauses.starts[kept], until[kept])


def _first_use_ns(
    collectives: Sequence[RankCollective], phases: dict[str, Spans], launched: tuple[Ints, Ints] | None
) -> Ints:
    """Return when computation with what each gather brings begins, as far as the next gather of its pass tells; else NONE.

    The last one of a pass is as long after the one before as that one is after its own.
    """
    begins = np.full(len(collectives), NONE, dtype=np.int64)
    gathers = [i for i, c in enumerate(collectives) if c.op == "all_gather" and c.launch_ns is not None]
    called = column(collectives, "launch_ns")[gathers]
    back = dict(zip(gathers, (pass_at(phases, called) == BACKWARD).tolist(), strict=True))
    for rank_pass in grouped(gathers, lambda i: (collectives[i].step, collectives[i].group, back[i])).values():
        rank_pass.sort(key=lambda i: _call_and_start(collectives[i]))
        for i, following in pairwise(rank_pass):
            begins[i] = _work_begin_ns(collectives[following], launched)
        if len(rank_pass) > 2 and begins[rank_pass[-3]] != NONE:
            begins[rank_pass[-1]] = 2 * begins[rank_pass[-2]] - begins[rank_pass[-3]]
    return begins


def _work_begin_ns(following: RankCollective, launched: tuple[Ints, Ints] | None) -> int:
    if launched is None:
        return following.start_ns
    starts, calls = launched
    later = starts[calls >= (following.launch_ns or 0)]
    return int(later.min()) if len(later) else NONE


def _starts_and_launches(view: RankView) -> tuple[Ints, Ints] | None:
    """Starts of the device's own work in their order, and when the host launched each; None where that is unknown."""
    events, launches = view.events, launches_of(view)
    chosen = launches.linked & (activity_of(view).work != Work.COMMUNICATION)
    if activity_of(view).source != "device" or not chosen.any():
        return None
    work, call = launches.of[chosen], launches.launch[chosen]
    return events.ts_ns[work], events.ts_ns[call]


def _ready_ns(view: RankView) -> Ints:
    """Return when each could have begun: on a device as the computation launched before it ends, else when it was called."""
    collectives = communication(view).collectives
    starts = column(collectives, "start_ns")
    called = column(collectives, "launch_ns")
    before = computed_before(view, called) if activity_of(view).source == "device" else called
    return np.where(called == NONE, starts, np.minimum(np.maximum(before, called), starts))


def _call_and_start(call: RankCollective) -> tuple[int, int]:
    return call.called_ns, call.start_ns


def _lane_count(calls: Sequence[RankCollective]) -> int:
    """Count how many ran at once at most, not counting those that merely touch."""
    return max(
        (
            1 + sum(c is not call and c.start_ns <= call.start_ns < c.end_ns - _BESIDE * c.duration_ns for c in calls)
            for call in calls
        ),
        default=1,
    )


LEAST_WAIT_NS = 20_000
"""What ends while the thread is between two operators for less than this was not waited for."""


def cpu_legs(view: RankView) -> RankLegs | Unavailable:
    """Legs of a CPU rank for ``cross_rank_path``, collectives numbered as given (by start).

    The rank waits where it communicates and computes nothing; what ends the wait is the collective that ends last in it. A
    collective begins after its call; where gloo's workers were still busy then, after the one that ended last before it.
    """
    activity, collectives = activity_of(view), communication(view).collectives
    if activity.window is None:
        return Unavailable("nothing ran in the trace")
    low, high = activity.window
    starts = column(collectives, "start_ns")
    ends = column(collectives, "end_ns")
    called = column(collectives, "called_ns")
    by_end = np.argsort(ends, kind="stable")
    ended = ends[by_end]
    waits = spans.subtract(activity.comm, activity.compute)
    last = np.searchsorted(ended, waits.ends, side="right") - 1
    until = np.append(ended, low)[last]
    waited = until - waits.starts >= LEAST_WAIT_NS
    until, by = until[waited], by_end[last[waited]]

    def leg(times: Ints) -> list[PathLeg]:
        """Return a leg from each time back to the end of the wait before it."""
        at = np.searchsorted(until, times, side="right") - 1
        begins = np.minimum(np.append(until, low)[at], times)
        compute = spans.measure_within(activity.compute, begins, times)
        rest = times - begins - compute
        places = np.append(by, -1)[at]
        return [
            PathLeg(parts=PathParts(host_operator_ns=c, host_other_ns=o), back_to=None if p < 0 else p)
            for c, o, p in zip(compute.tolist(), rest.tolist(), places.tolist(), strict=True)
        ]

    legs = leg(called)
    queued = np.searchsorted(ended, starts, side="right") - 1
    for i, place in enumerate(queued.tolist()):
        delay = int(starts[i] - called[i])
        if place >= 0 and ended[place] > called[i]:
            legs[i] = PathLeg(
                parts=PathParts(launch_latency_ns=int(starts[i] - ended[place])), back_to=int(by_end[place])
            )
        elif delay > 0:
            legs[i] = replace(legs[i], parts=replace(legs[i].parts, launch_latency_ns=delay))
    return RankLegs(
        rank=view.rank,
        end_ns=high,
        last=leg(np.array([high], dtype=np.int64))[0],
        legs=tuple(legs),
        durations_ns=tuple((ends - starts).tolist()),
    )
