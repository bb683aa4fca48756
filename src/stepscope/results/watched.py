"""A job at one moment, from its folder alone: whether it runs, how far it is, what has happened lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration
from stepscope.core.words import counted, grouped, ranges
from stepscope.results.diary import EVENT_WORDS
from stepscope.results.hardware import ERRORS, counted_errors
from stepscope.results.profiled_job import ProfiledJob, end_sentence

State = Literal["waiting", "running", "silent", "ended"]

SILENT_S, SILENT_STEPS = 10.0, 20
"""Without a step for this long, and for as many usual steps, a job that runs is called silent."""

LATEST = 50
"""Events that are kept."""


@record
class Happened:
    """Something that happened in a job. step: the number of the step, None for what is of no step. ns: of the rank that it
    cost most; None: it has no length."""

    at_unix_ns: int
    what: str
    step: int | None = None
    ranks: tuple[int, ...] = ()
    ns: int | None = None


@record
class Watched:
    """A job at one moment. state: waiting for a first step, running, without a step for longer than usual, ended. step: that
    all ranks ended.

    silent_s: since the last step that any rank wrote down; None: there is none. said: how it ended, or what is known of a
    silence. happened: the latest last.
    """

    job: ProfiledJob
    state: State
    step: int
    ranks_seen: int
    world_size: int | None
    hosts: int
    silent_s: float | None
    ended_as: str | None
    happened: tuple[Happened, ...]


def watched(job: ProfiledJob, *, written_unix_ns: int | None, now_unix_ns: int) -> Watched:
    """Look at a job at one moment. written_unix_ns: when a diary was last written to; None: there is none yet."""
    newest = tuple({diary.rank: diary for diary in job.diaries}.values())
    silent_s = None if written_unix_ns is None else max(0.0, (now_unix_ns - written_unix_ns) / 1e9)
    steps = job.steps
    state: State = "waiting" if steps is None else "running"
    sentence = None
    if job.end is not None:
        state, sentence = "ended", end_sentence(job.end)
    elif newest and all(diary.end is not None for diary in newest):
        state, sentence = (
            "ended",
            f"{counted(len(newest), 'rank')} ended, each by itself; how the command ended is not recorded",
        )
    elif (
        steps is not None
        and silent_s is not None
        and silent_s > max(SILENT_S, SILENT_STEPS * float(np.median(steps.step_ns)) / 1e9)
    ):
        made = {diary.rank: diary.made for diary in newest}
        behind = [rank for rank, count in made.items() if count < max(made.values())]
        state, sentence = "silent", f"no rank has ended a step for {format_duration(silent_s * 1e9)}"
        if behind and len(behind) < len(made):
            sentence += f"; rank {ranges(behind)} is behind: {min(made.values()):,} of {max(made.values()):,} steps"
    return Watched(
        job=job,
        state=state,
        step=0 if steps is None else steps.all_steps,
        ranks_seen=len(newest),
        world_size=max((diary.header.world_size for diary in newest), default=None),
        hosts=len({diary.header.host for diary in newest}),
        silent_s=silent_s,
        ended_as=sentence,
        happened=tuple(
            sorted(
                (*_diary_events(job), *_restart_events(job), *_error_events(job)), key=lambda event: event.at_unix_ns
            )
        )[-LATEST:],
    )


def _diary_events(job: ProfiledJob) -> Iterable[Happened]:
    """Yield the events of the ranks; what several have noted of the same step is one."""
    every = ((diary, event) for diary in job.diaries for event in diary.events)
    for (_, kind, step, what), same in grouped(
        every, lambda pair: (pair[0].header.restart, pair[1].kind, pair[1].step, pair[1].what)
    ).items():
        yield Happened(
            at_unix_ns=min(diary.header.start_unix_ns + event.at_ns for diary, event in same),
            what=EVENT_WORDS[kind] + (f" ({what})" if what else ""),
            step=step,
            ranks=tuple(sorted({diary.rank for diary, _ in same})),
            ns=max(event.ns for _, event in same) or None,
        )


def _restart_events(job: ProfiledJob) -> Iterable[Happened]:
    """Yield each time that the launcher started ranks again."""
    for restart, again in grouped(job.diaries, lambda diary: diary.header.restart).items():
        if restart:
            yield Happened(
                at_unix_ns=min(diary.header.start_unix_ns for diary in again),
                what=f"restart {restart} by the launcher",
                ranks=tuple(sorted({diary.rank for diary in again})),
            )


def _error_events(job: ProfiledJob) -> Iterable[Happened]:
    """Yield errors that GPUs and network ports have counted, at the time of the last one."""
    for error in () if job.steps is None else counted_errors(job.steps):
        ranks = {diary.rank for diary in job.steps.diaries if diary.header.host == error.host} if job.steps else set()
        where = "" if error.rank is not None else f" on {error.source} of {error.host}"
        yield Happened(
            at_unix_ns=int(error.unix_s * 1e9),
            what=f"{error.count:,} {ERRORS[error.column]}{where}",
            step=error.step,
            ranks=(error.rank,) if error.rank is not None else tuple(sorted(ranks)),
        )
