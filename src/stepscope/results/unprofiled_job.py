"""A job's traced step, slowed by the profiler -> the step that the job takes by itself, as its step diary timed it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.job import JobCall, MeasuredJob, replayed, stretched
from stepscope.predict.prices import Links, own_prices
from stepscope.records.profile import PROFILED
from stepscope.results.diary import JobSteps
from stepscope.stats.order import deviation_within

Numbers = NDArray[np.float64]

LEAST_STEPS = 4
"""Timed steps; of fewer the traced steps stay."""

OTHER_RANKS = 0.03
"""80% half-width of what a rank computes beside more or fewer others on a CPU: steps of one command differ by as much
between runs, and gloo's own threads take some of what the ranks compute on."""

MOST_FACTOR = 2.0
"""By which the time of collectives is scaled at most: more is no cost of a profiler, and stays unexplained."""

_ROUNDS = 50


def unprofiled(job: MeasuredJob, steps: JobSteps | None) -> MeasuredJob | Unavailable:
    """``job`` with the work, the waits and the spread of its timed steps; Unavailable where too few were timed.

    Work: the last rank's time until it waits for others. What follows the last reduction keeps its share of the step, as
    the diary's optimizer says where it has it. Collectives are scaled so that the replay takes the timed step.
    """
    if steps is None:
        return Unavailable("no step diary")
    timed = np.logical_and.reduce([diary.timed[steps.numbers - 1] for diary in steps.diaries])
    if timed.sum() < LEAST_STEPS:
        return Unavailable(f"the diary has {counted(int(timed.sum()), 'timed step')}")
    whole = float(np.median(steps.step_ns[timed]))
    own = _own_ns(steps, timed)
    if own is None:  # how much of the step is waiting is the traces' word
        own = whole * job.length_ns / max(job.step_ns, job.length_ns)
    own = min(own, whole)
    tail = min(_tail_ns(job, steps, timed, own), own)
    body, old = own - tail, job.length_ns - job.tail_ns
    found = stretched(job, body=body / old if old else 1.0, tail=tail / job.tail_ns if job.tail_ns else 1.0)
    data = steps.parts_ns["data"][:, timed]
    loading = float(np.median(np.nan_to_num(data).max(axis=0))) if np.isfinite(data).any() else job.input_ns
    factor = own / job.length_ns if job.length_ns else 1.0
    loading = min(loading, own)
    compute = min(job.compute_ns * factor, own - loading)
    spread, values, of = _spread(steps, timed, job)
    found = replace(
        found,
        step_ns=whole,
        compute_ns=compute,
        copies_ns=min(job.copies_ns * factor, own - loading - compute),
        input_ns=loading,
        cores=_cores(job, steps),
        doubt=_doubt(job, steps),
        spread_ns=spread,
        spread_from=values,
        spread_of=of,
        points=((job.ranks, whole), *(point for point in job.points if point[0] != job.ranks)),
    )
    slower, found = _as_long_as_timed(found)
    note = (
        f"starts from {counted(int(timed.sum()), 'step')} without the profiler: {format_duration(whole)}; the traced steps "
        f"took {format_duration(job.step_ns)} ({format_percent(job.step_ns / whole - 1, digits=0, signed=True)})"
    )
    if slower is not None and abs(slower - 1) > 0.05:
        note += f", their collectives {1 / slower:.2g} times as long as in those"
    return replace(found, notes=(note, *found.notes))


def _cores(job: MeasuredJob, steps: JobSteps) -> int | None:
    known = {diary.header.cores for diary in steps.diaries}
    return min(known - {None}, default=None) if job.device == "CPU" and len(set(steps.hosts)) == 1 else None  # type: ignore[type-var]


def _doubt(job: MeasuredJob, steps: JobSteps) -> float:
    """More where training threads waited for a processor: other ranks, or other work, took it."""
    if job.device != "CPU":
        return 0.0
    waited = float((np.nan_to_num(steps.delay_ns).sum(axis=1) / steps.whole_ns.sum(axis=1)).max())
    return math.hypot(OTHER_RANKS, min(0.5, waited))


def _own_ns(steps: JobSteps, timed: NDArray[np.bool_]) -> float | None:
    """Median over steps of the last rank's time until it waits for others; None where no waits are known."""
    if steps.ranks < 2 and steps.world_size > 1:
        return None
    comm = steps.comm_ns[:, timed]
    if not np.isfinite(comm).all():
        return None
    return float(np.median((steps.whole_ns[:, timed] - comm).max(axis=0)))


def _tail_ns(job: MeasuredJob, steps: JobSteps, timed: NDArray[np.bool_], own: float) -> float:
    """What follows the last reduction: as the optimizer's time in timed steps to that in profiled ones, else as all."""
    if not job.length_ns:
        return 0.0
    here = steps.parts_ns["optimizer"][:, timed]
    there = np.concatenate([_profiled(diary.columns["optimizer_ns"], diary.flags) for diary in steps.diaries])
    if not np.isfinite(here).any() or not np.isfinite(there).any():
        return job.tail_ns * own / job.length_ns
    return job.tail_ns * float(np.nanmedian(here)) / max(1.0, float(np.nanmedian(there)))


def _profiled(values: Numbers, flags: NDArray[np.uint8]) -> Numbers:
    return np.asarray(values[(flags & PROFILED) != 0])


def _spread(steps: JobSteps, timed: NDArray[np.bool_], job: MeasuredJob) -> tuple[float, int, str]:
    if not np.isfinite(steps.own_ns).all() or steps.ranks < 2:
        return job.spread_ns, job.spread_from, job.spread_of
    return deviation_within(steps.own_ns[:, timed].T.tolist())


def _as_long_as_timed(job: MeasuredJob) -> tuple[float | None, MeasuredJob]:
    """The factor on the times of its collectives at which the replay takes the measured step, and the job with it."""
    if not job.calls or job.ranks < 2 or any(call.time_ns is None for call in job.calls):
        return None, job
    prices = own_prices(job, Links())

    def step(factor: float) -> float:
        return replayed(job, lambda *call: factor * prices.of(*call).time_ns).step_ns

    low, high = 1 / MOST_FACTOR, MOST_FACTOR
    if step(low) >= job.step_ns or step(high) <= job.step_ns:
        factor = low if step(low) >= job.step_ns else high
        if step(1.0) == step(factor):  # all is hidden: nothing shows how long they take
            return None, job
    else:
        for _ in range(_ROUNDS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if step(middle) < job.step_ns else (low, middle)
        factor = (low * high) ** 0.5
    return factor, replace(job, calls=tuple(_slower(call, factor) for call in job.calls))


def _slower(call: JobCall, factor: float) -> JobCall:
    return replace(call, time_ns=(call.time_ns or 0.0) * factor)
