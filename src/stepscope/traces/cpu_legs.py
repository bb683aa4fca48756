"""The path of a CPU rank in legs from collective to collective: back along the training thread to where it last waited."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.core.errors import Unavailable
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_path import PathLeg, PathParts, RankLegs
from stepscope.stats import spans
from stepscope.traces.activity import Activity
from stepscope.traces.events import Ints

LEAST_WAIT_NS = 20_000
"""What ends while the thread is between two operators for less than this was not waited for."""


def cpu_legs(rank: int, activity: Activity, collectives: Sequence[RankCollective]) -> RankLegs | Unavailable:
    """Legs for :func:`stepscope.traces.cross_path.cross_rank_path`, collectives numbered as given (by start).

    The rank waits where it communicates and computes nothing; what ends the wait is the collective that ends last in it. A
    collective begins after its call; where gloo's workers were still busy then, after the one that ended last before it.
    """
    if activity.window is None:
        return Unavailable("nothing ran in the trace")
    low, high = activity.window
    starts = np.array([c.start_ns for c in collectives], dtype=np.int64)
    ends = np.array([c.end_ns for c in collectives], dtype=np.int64)
    called = np.array([c.start_ns if c.launch_ns is None else c.launch_ns for c in collectives], dtype=np.int64)
    by_end = np.argsort(ends, kind="stable")
    ended = ends[by_end]
    waits = spans.subtract(activity.comm, activity.compute)
    last = np.searchsorted(ended, waits.ends, side="right") - 1
    waited = (last >= 0) & (ended[np.maximum(last, 0)] - waits.starts >= LEAST_WAIT_NS) if len(ended) else last >= 0
    until, by = ended[last[waited]], by_end[last[waited]]

    def leg(times: Ints) -> list[PathLeg]:
        """From each time back to the end of the wait before it."""
        at = np.searchsorted(until, times, side="right") - 1
        known = at >= 0
        begins = np.full(len(times), low, dtype=np.int64)
        begins[known] = until[at[known]]
        begins = np.minimum(begins, times)
        compute = spans.measure_within(activity.compute, begins, times)
        rest = times - begins - compute
        places = np.where(known, by[np.maximum(at, 0)], -1) if len(by) else np.full(len(times), -1)
        return [
            PathLeg(parts=_parts(host_operator_ns=c, host_other_ns=o), back_to=None if p < 0 else p)
            for c, o, p in zip(compute.tolist(), rest.tolist(), places.tolist(), strict=True)
        ]

    legs = leg(called) if len(starts) else []
    queued = np.searchsorted(ended, starts, side="right") - 1
    for i, place in enumerate(queued.tolist()):
        delay = int(starts[i] - called[i])
        if place >= 0 and ended[place] > called[i]:
            legs[i] = PathLeg(parts=_parts(launch_latency_ns=int(starts[i] - ended[place])), back_to=int(by_end[place]))
        elif delay > 0:
            parts = legs[i].parts
            legs[i] = PathLeg(
                parts=_parts(
                    host_operator_ns=parts.host_operator_ns,
                    host_other_ns=parts.host_other_ns,
                    launch_latency_ns=delay,
                ),
                back_to=legs[i].back_to,
            )
    return RankLegs(
        rank=rank,
        end_ns=high,
        last=leg(np.array([high], dtype=np.int64))[0],
        legs=tuple(legs),
        durations_ns=tuple((ends - starts).tolist()),
    )


def _parts(**given: int) -> PathParts:
    return PathParts(**{name: given.get(name, 0) for name in PathParts.__dataclass_fields__})
