"""A folder of ``stepscope profile`` or ``run``: what its ranks recorded of all their steps, beside the window's traces, and
how the job ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.dataclass import dataclass, record
from stepscope.core.words import counted
from stepscope.records.parts import INSIDE
from stepscope.records.profile import Hang, HookedRank, JobEnd, ProfileRecord, WindowOfRank
from stepscope.results.diary import JobSteps, job_steps
from stepscope.stats.step_table import Numbers
from stepscope.store.diary import RankDiary, read_diaries, whole_steps
from stepscope.store.hardware import read_ports
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_created, read_if_there, read_record
from stepscope.traces.flight_calls import ranks_text

if TYPE_CHECKING:
    from stepscope.predict.loading import Loading

MESSAGE_CHARS = 160
FEW_PROCESSES = 64
"""Most processes of which all steps are read."""

RECORDS, LEAST_LAST = 400_000, 100
"""Steps that are read of more processes: so many together, and so many of each at least: 4,096 ranks are judged in 2 s and
300 MB (2026-11)."""

_SOURCE = re.compile(r"^\[[^\]\s]+\.(?:cc|cpp|h):\d+\] ")

_STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")


def read_job_end(layout: ProfileLayout) -> JobEnd | None:
    """Return how the job ended; None while it runs, and for a folder of an older stepscope. Raises DataError for a damaged
    record."""
    return read_if_there(layout.end, JobEnd)


def end_sentence(end: JobEnd) -> str:
    """``Crash: rank 1 raised KeyError in step 4 (...); rank 0 was stopped by it; exit code 1. 3 steps recorded ...``"""
    parts = [_end_text(end)]
    if (stopped := tuple(rank for rank in end.victims if rank not in dict(end.running))) and end.hang is None:
        was = "was" if len(stopped) == 1 else "were"
        parts.append(f"{ranks_text(stopped)} {was} stopped by it")
    if end.restarts:
        parts.append(f"after {counted(end.restarts, 'restart')}")
    if end.code is not None and (end.kind != "exit-code" or end.ranks):
        parts.append(f"exit code {end.code}")
    if end.independent:
        parts.append(
            f"{end.independent} processes train as rank 0 of 1 each: no process group joins them, each has its own diary"
        )
    text = "; ".join(parts)
    if end.steps_timed is None and not end.steps_profiled:
        return text
    counts = [] if end.steps_timed is None else [f"{counted(end.steps_timed + end.steps_profiled, 'step')} recorded"]
    if end.steps_profiled or end.kind != "ok":  # else nobody asked for a window
        counts.append(f"{end.steps_profiled} profiled")
    return f"{text}. {', '.join(counts)}"


def _end_text(end: JobEnd) -> str:
    """Say how the job ended, by the kind of its end."""
    match end.kind:
        case "ok":
            return "Ended well" if end.no_window is None else f"Ended well, without a window: {end.no_window}"
        case "short":
            return "The job ended before the window"
        case "no-steps":
            return "No optimizer step was recorded" + (f": {end.message}" if end.message else "")
        case "interrupted":
            return f"Interrupted by {end.signal or 'a signal'}"
        case "hang":
            return f"Hang: {_hang_end_text(end)}"
        case "exit-code":
            code = end.code if end.rank_code is None else end.rank_code
            return f"Failed: {_who_text(end)} exited with code {code}{_where_text(end)}"
        case "killed" | "out-of-memory" if end.launcher:
            by = "the kernel, for want of memory" if end.kind == "out-of-memory" else f"{end.signal} from outside"
            return f"{end.kind.replace('-', ' ').capitalize()}: the launcher was killed by {by}{_running_text(end)}"
        case "killed" if end.signal is None:
            return f"Killed: {_who_text(end)} ended without an error message{_where_text(end)}: by a signal, or by os._exit"
        case "killed" if not end.ranks and end.signal in _STOPPING:
            by = f"{end.signal} from outside (scheduler, user or launcher)"
            return f"Killed: {by} ended the job{_where_text(end)}; no rank failed"
        case "killed":
            were = "were" if len(end.ranks) > 1 else "was"
            outside = " from outside" if end.signal in _STOPPING else ""
            return f"Killed: {_who_text(end)} {were} ended by {end.signal}{outside}{_where_text(end)}"
        case "out-of-memory" if end.exception is None:
            sure = "likely the kernel, for" if end.likely else "the kernel, for"
            return f"Out of memory: {_who_text(end)} was killed by {sure} want of memory{_where_text(end)}"
        case "out-of-memory":
            return f"Out of memory: {_raised_text(end)}"
        case "crash":
            return f"Crash: {_raised_text(end)}"


def _raised_text(end: JobEnd) -> str:
    message = _first_line(end.message)
    return f"{_who_text(end)} raised {end.exception or 'an exception'}{f': {message}' if message else ''}{_where_text(end)}"


def _first_line(message: str | None) -> str:
    """Return the first line of a message, without the place in torch's own source that it begins with."""
    lines = (message or "").strip().splitlines()
    return shorten(_SOURCE.sub("", lines[0]), MESSAGE_CHARS, placeholder=" ...") if lines else ""


def _running_text(end: JobEnd) -> str:
    """Name the ranks that a launcher left behind."""
    if not end.running:
        return ""
    runs, pid = ("runs", "pid") if len(end.running) == 1 else ("run", "pids")
    pids = ", ".join(str(process) for _, process in end.running)
    host = f" on {end.host}" if end.host else ""
    return f"; {ranks_text([rank for rank, _ in end.running])} still {runs}: {pid} {pids}{host}"


def _where_text(end: JobEnd) -> str:
    """Write the step in which it ended, as exactly as it is known, and the place: `` in step 4 (train.py:41)``."""
    if end.step is None:
        when = " before the first step" if end.steps_timed == 0 else ""
    else:
        when = f" after step {end.step - 1}" if end.kind == "exit-code" else f" in step {end.step}"
        if not end.step_exact:
            when = f" after step {end.step - 1} at the earliest"
    return when + (f" ({end.place})" if end.place else "")


def _hang_end_text(end: JobEnd) -> str:
    assert end.hang is not None
    return hang_words(end.hang, end.place)


_NOWHERE = ("other", "outside")
_MOST_GROUPS = 4


def hang_words(hang: Hang, place: str | None) -> str:
    """Say what is known of ranks that stand still, or stood still until some gave up. place: of the first of them."""
    since = _silence_sentence(hang)
    at = f" (at {place})" if place else ""
    if hang.said is not None:
        is_at = f"; rank {hang.ranks[0]} {'was' if hang.timed_out else 'is'} at {place}" if place and hang.ranks else at
        return f"{hang.said}{is_at}; {since}"
    if hang.timed_out:
        return (
            f"{_absence_sentence(hang)}{at}; {since}" if hang.ranks else f"{since}; which rank did not come is unknown"
        )
    who = f"{ranks_text(hang.ranks)} {'is' if len(hang.ranks) == 1 else 'are'} behind{at}; " if hang.ranks else ""
    return f"{who}{since}{'' if hang.ranks else at}"


def _silence_sentence(hang: Hang) -> str:
    """Write ``no rank has ended step 4 for 15 s``; of ranks that gave up, who did, after how long, with which message."""
    if not hang.timed_out:
        return f"no rank has ended step {hang.step} for {hang.silent_s:.0f} s"
    message = _first_line(hang.timeout)
    text = f"{ranks_text(hang.timed_out)} gave up waiting in step {hang.step} after {hang.silent_s:.0f} s"
    return text + (f": {message}" if message else "")


def _absence_sentence(hang: Hang) -> str:
    """Write which ranks never came to the collective, and the part of the step that all of them were in."""
    parts = {INSIDE[part] for rank, part in hang.parts if rank in hang.ranks and part in INSIDE}
    were = "it was" if len(hang.ranks) == 1 else "they were"
    inside = f": {were} {parts.pop()}" if len(parts) == 1 else ""
    return f"{ranks_text(hang.ranks)} never came to the collective that others waited in{inside}"


def stall_words(hang: Hang) -> str:
    """``no step for 15 s: rank 1 is in data loading at train.py:41, rank 0 waits in all_reduce``"""
    doing: dict[tuple[str, str], list[int]] = {}
    for rank in (*hang.ranks, *(rank for rank in sorted({*hang.waiting, *dict(hang.parts)}) if rank not in hang.ranks)):
        if (does := _rank_verb_and_object(hang, rank)) is not None:
            doing.setdefault(does, []).append(rank)
    verbs = {"is": "are", "waits": "wait", "leaves": "leave"}
    groups = [
        f"{ranks_text(ranks)} {verb if len(ranks) == 1 else verbs[verb]} {what}"
        for (verb, what), ranks in list(doing.items())[:_MOST_GROUPS]
    ]
    return f"no step for {hang.silent_s:.0f} s" + (f": {', '.join(groups)}" if groups else "")


def _rank_verb_and_object(hang: Hang, rank: int) -> tuple[str, str] | None:
    """Say what a rank does, as a verb and what belongs to it; None: not known."""
    part = dict(hang.parts).get(rank)
    at = f" at {hang.place.partition(' in ')[0]}" if hang.place and rank in hang.ranks[:1] else ""
    if part is None and not at:
        return ("leaves", "no word") if rank in hang.ranks else None
    if part is None or part in _NOWHERE:
        return ("is", at.strip() or "between the parts of a step")
    if part == "comm":
        return "waits", f"for other ranks{at}"
    return ("is", INSIDE[part] + at) if part in INSIDE else ("waits", f"in {part}{at}")


def _who_text(end: JobEnd) -> str:
    return ranks_text(end.ranks) if end.ranks else "the command"


@record
class ProfiledJob:
    """A job with the diaries of its steps. name: the folder's. steps: None where no rank made a step. facts: of the model
    and its wrappers, as rank 0's hook found them, {} where it did not. profiled_ns: of each rank, the steps of the latest
    window that left traces. end: None while the job runs; ended_unix_ns: when it was written. pace: of the lowest rank.
    """

    name: str
    folder: Path
    record: ProfileRecord
    diaries: tuple[RankDiary, ...]
    steps: JobSteps | None
    facts: Mapping[str, Any]
    profiled_ns: tuple[tuple[int, ...], ...] = ()
    end: JobEnd | None = None
    pace: StepRate | None = None
    ended_unix_ns: int | None = None

    @property
    def steps_profiled(self) -> int:
        return max(map(len, self.profiled_ns), default=0)

    @property
    def profiled_step_ns(self) -> float | None:
        """Median step of the window, mean over ranks; None where no window left traces."""
        times = [median(rank_ns) for rank_ns in self.profiled_ns if rank_ns]
        return float(fmean(times)) if times else None

    @property
    def on_cpu(self) -> bool | None:
        """Whether all of the optimizer's parameters lie on the CPU; None: not recorded."""
        devices = (self.facts.get("optimizer") or {}).get("devices")
        return None if not devices else set(devices) == {"cpu"}

    @property
    def loaders(self) -> tuple[Mapping[str, Any], ...]:
        """Loaders of training: those that something iterated as the first step ended, else all that were recorded."""
        recorded = self.facts.get("loaders") or {}
        first = recorded.get("first")
        return tuple(recorded.get("iterating") or recorded.get("all") or ([first] if first else ()))

    @property
    def loader_workers(self) -> int | None:
        """Workers of each loader; None: there is no loader, they have different numbers, or one is not recorded."""
        counts = {loader.get("num_workers") for loader in self.loaders}
        workers = counts.pop() if len(counts) == 1 else None
        return None if workers is None else int(workers)

    @property
    def loads_ahead(self) -> bool:
        """Whether worker processes load the next batches while a rank is busy or waits."""
        return any(loader.get("num_workers") for loader in self.loaders)

    @property
    def loading(self) -> Loading | None:
        """How the ranks wait for data; None: nobody waits, or it is not known how many workers load."""
        from stepscope.results.host_load import loading_of  # logs and traces alone have no loader

        workers = self.loader_workers
        return None if self.steps is None or workers is None else loading_of(self.steps, workers=workers)


def last_steps(layout: ProfileLayout) -> int | None:
    """Return how many steps of each process are read; None: all, with as few processes as most jobs have."""
    processes = len(layout.diaries())
    return None if processes <= FEW_PROCESSES else max(LEAST_LAST, RECORDS // processes)


def read_profiled_job(folder: Path, *, last: int | None = None) -> ProfiledJob | None:
    """Read the job whose folder this is; None for any other folder. Raises DataError for damaged files.

    last: no more steps of each process; None: as ``last_steps``.
    """
    layout = ProfileLayout(folder)
    if not layout.is_there:
        return None
    record = read_record(layout.record, ProfileRecord)
    of_many = last_steps(layout)
    diaries = read_diaries(layout, last=of_many if last is None else min(last, of_many or last))
    ranks = (read_record(path, HookedRank) for path in layout.ranks())
    windows = layout.windows()
    reports = [read_record(path, WindowOfRank) for path in layout.window_ranks(windows[-1])] if windows else []
    return ProfiledJob(
        name=folder.resolve().name,
        folder=folder,
        record=record,
        diaries=diaries,
        steps=job_steps(diaries, read_ports(layout)),
        facts=next((facts for rank in ranks if (facts := getattr(rank, "facts", None))), {}),
        end=read_job_end(layout),
        pace=pace(whole_steps(layout, diaries[0].rank)) if diaries else None,
        ended_unix_ns=_written_unix_ns(layout.end),
        profiled_ns=tuple(report.profiled_ns for report in reports if report.status == "written"),
    )


def _written_unix_ns(path: Path) -> int | None:
    """Return when a record was written; None where there is none, or it does not say."""
    created = read_created(path) if path.exists() else None
    try:
        return None if created is None else int(datetime.fromisoformat(created).timestamp() * 1e9)
    except ValueError:
        return None


MOMENTS = 60
"""Stretches of equal time."""

STEPS_EACH = 4
"""Fewest steps of a stretch, on average: with fewer, where its borders fall decides their number."""

NOW = 20
"""Last steps, whose pace is that of now."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRate:
    """How fast steps were made. begin_unix_ns, end_unix_ns: from the first step's begin to the last step's end. steps_per_s:
    [moments], of stretches of equal length, with all that happened between steps, and between processes. now: of the last
    steps.
    """

    begin_unix_ns: float
    end_unix_ns: float
    steps_per_s: Numbers
    now: float

    @property
    def seconds(self) -> float:
        """Seconds of one stretch."""
        return (self.end_unix_ns - self.begin_unix_ns) / 1e9 / self.steps_per_s.size

    @property
    def mean(self) -> float:
        return float(self.steps_per_s.mean())


def pace(processes: Sequence[tuple[int, Numbers]]) -> StepRate | None:
    """Return the rate of steps, from (begin on the wall clock in ns, ns of each step) of each process of one rank; None: no
    step took time."""
    stepped = [(begin, np.nan_to_num(steps)) for begin, steps in processes if steps.size]
    if not stepped or not (last := stepped[-1][1]).sum() > 0:
        return None
    ends = np.concatenate([begin + np.cumsum(steps) for begin, steps in stepped])
    begin, end = float(stepped[0][0]), float(ends.max())
    moments = int(np.clip(ends.size // STEPS_EACH, 1, MOMENTS))
    counts, _ = np.histogram(ends, bins=moments, range=(begin, end))
    recent = last[-NOW:]
    return StepRate(
        begin_unix_ns=begin,
        end_unix_ns=end,
        steps_per_s=np.asarray(counts / ((end - begin) / 1e9 / moments), dtype=np.float64),
        now=recent.size / (float(recent.sum()) / 1e9),
    )
