"""Goodput: the share of a job's wall time that went into steps which it kept, and where the rest went, across restarts.

The wall time runs from the start of the first rank's process to the end of the last one; of a running job to its last step.
It is told along one rank of each attempt, the one with most steps: ranks train in lock step, so what holds up one of them
holds up all. Every nanosecond is in exactly one part. docs/explain/goodput.md: what each part is, and what it cannot see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import counted, grouped
from stepscope.records.profile import NO_TIMED_STEP, PROFILED, WINDOW, EventKind
from stepscope.results.diary import PAUSE_FACTOR, PAUSE_MADS, overlap, span, warm_up_steps
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.trainings import trainings
from stepscope.stats.order import mad
from stepscope.store.diary import RankDiary

Numbers = NDArray[np.float64]

Part = Literal[
    "productive", "start_up", "warm_up", "compilation", "evaluation", "inference", "checkpoint", "loader_start",
    "garbage_collection", "data_stall",
    "pause", "profiler", "restart", "repeated", "hang", "end",
]  # fmt: skip

PARTS: tuple[Part, ...] = get_args(Part)
"""Parts of the wall time; what each of them is, its figure in ``results/figures.py`` says."""

_OUTSIDE: Mapping[EventKind, Part] = {
    "trace_written": "profiler", "checkpoint": "checkpoint", "evaluation": "evaluation", "inference": "inference",
    "loader_start": "loader_start",
}  # fmt: skip
_INSIDE: Mapping[EventKind, Part] = {"compilation": "compilation", "garbage_collection": "garbage_collection"}


@record
class Goodput:
    """What the wall time of a job went to. parts_ns: of ``PARTS``, with sum ``wall_ns``. begin_unix_ns: of the first
    process. worlds: ranks of each attempt. trainings: one after the other, of which the later ones lose nothing of the
    earlier ones.

    steps: of all attempts; repeated_steps: of those, lost. saved: whether any checkpoint was seen: without one, a restart
    loses all the steps before it, unless the job saves with calls that the hook does not know.
    """

    begin_unix_ns: int
    parts_ns: Mapping[Part, float]
    worlds: tuple[int, ...]
    steps: int
    repeated_steps: int
    saved: bool
    trainings: int = 1

    @property
    def wall_ns(self) -> float:
        return sum(self.parts_ns.values())

    @property
    def restarts(self) -> int:
        return len(self.worlds) - self.trainings

    def share(self, part: Part) -> float:
        """Return the part's share of the wall time."""
        return self.parts_ns[part] / self.wall_ns


def goodput_of(jobs: Sequence[ProfiledJob]) -> Goodput | None:
    """Return the goodput of the only job; None where there are several, or it is not known."""
    account = goodput(jobs[0]) if len(jobs) == 1 else None
    return None if isinstance(account, Unavailable) else account


def goodput(job: ProfiledJob) -> Goodput | Unavailable:
    """Account for the wall time of one job, from all of its diaries. Unavailable: no steps, the first ones not read, or
    processes side by side."""
    diaries = [diary for diary in job.diaries if diary.steps]
    if not diaries:
        return Unavailable("no step was recorded")
    if any(diary.first for diary in diaries):
        return Unavailable(f"of {counted(len(diaries), 'process')} the last steps alone are read")
    if any(overlap(same) for same in grouped(diaries, lambda diary: diary.rank).values()):
        return Unavailable("several processes train side by side as the same rank")
    every = trainings(diaries, span)
    attempts = [attempt for training in every for attempt in training]
    last_of_training = [attempt is training[-1] for training in every for attempt in training]
    begin = min(diary.header.start_unix_ns - (diary.header.set_up_ns or 0) for diary in attempts[0])
    parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    now, repeated = float(begin), 0
    before: Part = "start_up"
    typical = [_usual_step_ns(_longest_diary(attempt)) for attempt in attempts]
    medians = [step_ns for step_ns in typical if step_ns is not None]
    for at, attempt in enumerate(attempts):
        longest = _longest_diary(attempt)
        parts[before] += max(longest.header.start_unix_ns - now, 0.0)
        now = max(now, float(longest.header.start_unix_ns))
        usual = typical[at] or (float(np.median(medians)) if medians else float(np.median(longest.net_ns)))
        steps = _step_parts_ns(attempt, longest, usual)
        for part, step in steps.items():
            parts[part] += float(step.sum())
        now += float(np.nansum(longest.whole_ns))
        last = at == len(attempts) - 1
        until = _last_end_s(job, attempt, now) if last else float(_longest_diary(attempts[at + 1]).header.start_unix_ns)
        for part, ns in _parts_after_last_step_ns(attempt, longest.steps).items():
            taken = min(ns, max(until - now, 0.0))
            parts[part] += taken
            now += taken
        before = "restart"
        if last:
            parts["hang" if job.end is not None and job.end.kind == "hang" else "end"] += max(until - now, 0.0)
        elif last_of_training[at]:
            ended = min(max([now, *(float(diary.end.at_unix_ns) for diary in attempt if diary.end is not None)]), until)
            parts["end"] += max(ended - now, 0.0)
            now, before = max(now, ended), "start_up"
        else:
            kept = _saved_steps(attempt)
            lost = float(steps["productive"][kept:].sum())
            parts["productive"] -= lost
            parts["repeated"] += lost
            repeated += max(longest.steps - kept, 0)
    return Goodput(
        begin_unix_ns=begin,
        parts_ns=parts,
        worlds=tuple(max(diary.header.world_size for diary in attempt) for attempt in attempts),
        steps=sum(_longest_diary(attempt).steps for attempt in attempts),
        repeated_steps=repeated,
        saved=any(_saved_steps(attempt) for attempt in attempts),
        trainings=len(every),
    )


def _longest_diary(attempt: Sequence[RankDiary]) -> RankDiary:
    return max(attempt, key=lambda diary: (diary.steps, -diary.rank))


def _warm_up_steps(diary: RankDiary) -> int:
    return max(1, warm_up_steps(diary.net_ns, diary.timed))


def _usual_step_ns(diary: RankDiary) -> float | None:
    """Return the median ns of a diary's timed steps after the warm-up; None where there are none."""
    kept = diary.timed.copy()
    kept[: _warm_up_steps(diary)] = False
    return float(np.median(diary.net_ns[kept])) if kept.any() else None


def _step_parts_ns(attempt: Sequence[RankDiary], longest: RankDiary, usual: float) -> dict[Part, Numbers]:
    """Divide the steps of ``longest`` into parts, ns [steps] each."""
    left = np.nan_to_num(longest.whole_ns).copy()
    parts: dict[Part, Numbers] = {part: np.zeros_like(left) for part in PARTS}

    def take(part: Part, most: Numbers) -> None:
        taken = np.clip(most, 0.0, left)
        parts[part] += taken
        np.subtract(left, taken, out=left)

    own_outside = np.nan_to_num(longest.columns["outside_ns"]).copy()
    for kind, part in _OUTSIDE.items():  # a rank that waits for another's evaluation waits in communication
        before = left.copy()
        take(part, np.minimum(_events_ns(attempt, kind, left.size), np.maximum(left - usual, own_outside)))
        own_outside -= np.minimum(own_outside, before - left)
    for kind, part in _INSIDE.items():
        take(part, np.minimum(_events_ns(attempt, kind, left.size), left - usual))
    number = np.arange(left.size)
    flags = _merged_flags(attempt, left.size)
    take("profiler", np.where(flags & (PROFILED | WINDOW), left - usual, 0.0))
    take("warm_up", np.where(number < _warm_up_steps(longest), left - usual, 0.0))
    usual_spread = mad(left[(flags & NO_TIMED_STEP) == 0]) if ((flags & NO_TIMED_STEP) == 0).any() else 0.0
    long = (left > PAUSE_FACTOR * usual) & (left > usual + PAUSE_MADS * usual_spread)
    take("data_stall", np.where(long, np.minimum(_data_beyond(attempt, left.size), left - usual), 0.0))
    take("pause", np.where(long, left - usual, 0.0))
    parts["productive"] = left
    return parts


def _events_ns(attempt: Sequence[RankDiary], kind: EventKind, steps: int) -> Numbers:
    """Return what events of the kind took in each step, ns [steps], on the rank where they took longest."""
    taken = np.zeros((len(attempt), steps))
    for rank_ns, diary in zip(taken, attempt, strict=True):
        for event in diary.events:
            if event.kind == kind and event.step <= steps:
                rank_ns[event.step - 1] += event.ns
    return np.asarray(taken.max(axis=0))


def _merged_flags(attempt: Sequence[RankDiary], steps: int) -> NDArray[np.uint8]:
    flags = np.zeros(steps, dtype=np.uint8)
    for diary in attempt:
        flags[: diary.steps] |= diary.flags
    return flags


def _data_beyond(attempt: Sequence[RankDiary], steps: int) -> Numbers:
    """Return the wait for data beyond the median wait, ns [steps], of the rank that waits longest."""
    beyond = np.zeros(steps)
    for diary in attempt:
        waits = np.nan_to_num(diary.columns["data_ns"])
        beyond[: diary.steps] = np.maximum(beyond[: diary.steps], waits - np.median(waits))
    return beyond


def _parts_after_last_step_ns(attempt: Sequence[RankDiary], steps: int) -> dict[Part, float]:
    """Return what events after the last step took by part, ns, on the rank where they took longest."""
    return {
        part: max(float(sum(e.ns for e in diary.events if e.kind == kind and e.step > steps)) for diary in attempt)
        for kind, part in _OUTSIDE.items()
    }


def _saved_steps(attempt: Sequence[RankDiary]) -> int:
    """Return the number of steps that the last checkpoint of the attempt holds; 0 without one."""
    return max((e.step - 1 for diary in attempt for e in diary.events if e.kind == "checkpoint"), default=0)


def _last_end_s(job: ProfiledJob, attempt: Sequence[RankDiary], now: float) -> float:
    """When the last process of the job ended, as far as is known."""
    ends = [float(diary.end.at_unix_ns) for diary in attempt if diary.end is not None]
    if job.end is not None and job.end.kind == "hang" and job.ended_unix_ns is not None:
        ends.append(float(job.ended_unix_ns))
    return max([now, *ends])
