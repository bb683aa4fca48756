"""The evidence of a job under the hook, from what its processes and its launcher left in the folder, and its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.records.profile import FailedProcess, HookedProcess, JobEnd, LaunchedRank, RankEnd, WindowOfRank
from stepscope.results.ends.evidence import (
    CommandEnd,
    EndEvidence,
    Fate,
    Launcher,
    Process,
    class_name,
    signal_of,
    sort_of,
)
from stepscope.results.ends.judge import judge
from stepscope.results.ends.stacks import LeftState
from stepscope.results.ends.timeouts import timeout_of
from stepscope.results.trainings import ProcessSpan, trainings
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

_LAUNCHERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions by which a launcher passes on the failure of a rank."""


@record
class DiaryFacts:
    """What the end needs of one process's diary. steps: number of recorded ones; profiled: how many of them lie in the
    window or its writing."""

    rank: int
    world_size: int
    host: str
    pid: int
    restart: int
    start_unix_ns: int
    last_unix_ns: int
    steps: int
    profiled: int = 0
    end: RankEnd | None = None


@record
class EndFacts(CommandEnd):
    """What is there as a job ends. child: the command's process id; folder: in which it runs; ended_ns: its end.

    signalled: whether a signal ended the command itself, rather than something that it reports. gone_ns: when each process
    of this host was seen to be gone, on the wall clock. left: what processes of this host leave that no end takes from them.
    running: those of them that still ran as the command had ended. timed: whether diaries were kept. unrecorded: ends of
    processes of which no step is recorded.
    """

    ended_ns: int
    folder: str = ""
    child: int | None = None
    diaries: Sequence[DiaryFacts] = ()
    processes: Sequence[HookedProcess] = ()
    failures: Sequence[FailedProcess] = ()
    windows: Sequence[WindowOfRank] = ()
    unrecorded: Sequence[RankEnd] = ()
    gone_ns: Mapping[Process, int] = field(default_factory=dict)
    signalled: bool = False
    left: Mapping[Process, LeftState] = field(default_factory=dict)
    running: Collection[Process] = ()
    timed: bool = True


def job_end(every: EndFacts) -> JobEnd:
    """Judge the end of the job by its last training."""
    last = facts = _of_last_training(every)
    evidence = job_evidence(facts)
    if facts.code and facts is not every and all(fate.sort == "fine" for fate in evidence.fates):
        facts, evidence = every, job_evidence(every)  # the command passes on how an earlier one ended
    end = judge(evidence)
    timed, profiled = _timed_and_profiled_steps(facts)
    stated = [int(p.world_size) for p in facts.processes if p.world_size is not None and p.world_size.isdigit()]
    written = any(report.status == "written" for report in facts.windows)
    folder = f"{facts.folder}/" if facts.folder else ""
    before = _diary_trainings(every.diaries)[:-1]
    judged = {f.name: getattr(end, f.name) for f in fields(JobEnd) if hasattr(end, f.name)}
    judged["ranks"] = end.ranks if end.hang is not None else tuple(sorted(end.ranks))
    judged["victims"] = tuple(sorted(end.victims))
    judged["place"] = end.place and end.place.removeprefix(folder)
    return JobEnd(
        **judged,
        code=facts.code,
        world_size=max((d.world_size for d in facts.diaries), default=None) or max(stated, default=None),
        steps_timed=timed,
        steps_profiled=profiled,
        restarts=_restart_count(last) + sum(max(d.restart for d in attempts[-1]) for attempts in before),
        independent=independent(every.diaries),
        no_window=None if written else next((report.reason for report in facts.windows if report.reason), None),
    )


def job_evidence(facts: EndFacts) -> EndEvidence:
    """Return what is known of a job's end: fates of processes, hang, steps and signals."""
    last = _last_of_each(facts.diaries)
    fates = _process_fates(facts)
    worlds = [d.world_size for d in facts.diaries] + [f.world_size or 0 for f in facts.failures]
    whole = {_process_key(d) for d in last if d.end is not None} | facts.left.keys()
    return EndEvidence(
        **{f.name: getattr(facts, f.name) for f in fields(CommandEnd)},
        fates=fates,
        world_size=max(worlds, default=0),
        launcher=_launcher_facts(facts),
        furthest=max((_steps_of(d, facts) for d in last), default=None),
        counted=frozenset(d.rank for d in last if _process_key(d) in whole),
        steps=sum(number or 0 for number in _timed_and_profiled_steps(facts)),
        windows=bool(facts.windows),
        unrecorded=next((report.message for report in facts.unrecorded if report.message), None),
    )


def _diary_trainings(diaries: Sequence[DiaryFacts]) -> list[list[list[DiaryFacts]]]:
    return trainings(
        diaries, lambda d: ProcessSpan(rank=d.rank, restart=d.restart, start_ns=d.start_unix_ns, end_ns=d.last_unix_ns)
    )


def _of_last_training(facts: EndFacts) -> EndFacts:
    """Leave out the processes of trainings that had ended before the last one began."""
    runs = _diary_trainings(facts.diaries)
    if len(runs) <= 1 or independent(facts.diaries):
        return facts
    last = [diary for attempt in runs[-1] for diary in attempt]
    before = {_process_key(d) for d in facts.diaries} - {_process_key(d) for d in last}
    begin_ns = min(d.start_unix_ns for d in last)
    failures = [
        f for f in facts.failures if _process_key(f) not in before and (f.at_unix_ns >= begin_ns or not f.ranks)
    ]
    return replace(facts, diaries=last, failures=failures)


def _launcher_facts(facts: EndFacts) -> Launcher:
    """Return what the launcher knew: which processes were ranks, which failed first."""
    ranks = {_process_key(p): int(p.rank) for p in facts.processes if p.rank is not None and p.rank.isdigit()}
    ranks |= {_process_key(d): d.rank for d in facts.diaries}
    stepped = ranks.keys() | {_process_key(p) for p in facts.processes if p.rank is not None}
    stepped |= {_process_key(f) for f in facts.failures if f.rank is not None}
    running = tuple(sorted((ranks[process], process[1]) for process in facts.running if process in ranks))
    stopped = any(class_name(f.exception) == "SignalException" and f.rank is None for f in facts.failures)
    stopped = stopped or (signal_of(facts.code) is not None and (facts.signalled or bool(running)))
    return Launcher(
        ended=bool(stepped) and (facts.host, facts.child) not in stepped and stopped,
        gone_ns=facts.gone_ns.get((facts.host, facts.child or 0), facts.ended_ns),
        noticed=next((failure.ranks[0].rank for failure in facts.failures if failure.ranks), None),
        running=running,
    )


def _process_key(of: DiaryFacts | FailedProcess | HookedProcess) -> Process:
    return of.host, of.pid


def _process_fates(facts: EndFacts) -> tuple[Fate, ...]:
    """Return the fates of the last process of each rank, and of processes that failed before they were any rank."""
    last = _restart_count(facts)
    diaries = {_process_key(d): d for d in _last_of_each([d for d in facts.diaries if d.restart == last])}
    launched = {(f.host, rank.pid): (rank, f.at_unix_ns) for f in facts.failures for rank in f.ranks}
    raised = {
        _process_key(f): f
        for f in facts.failures
        if class_name(f.exception) not in _LAUNCHERS
        and (_process_key(f) in diaries or (f.restart == last and not _of_a_helper(f, facts.diaries)))
    }
    fates = (
        _process_fate(process, facts, diaries.get(process), raised.get(process), launched.get(process))
        for process in diaries | raised | launched
    )
    return tuple(sorted(fates, key=lambda fate: (fate.at_ns, fate.process)))


def _process_fate(
    process: Process,
    facts: EndFacts,
    diary: DiaryFacts | None,
    failure: FailedProcess | None,
    launched: tuple[LaunchedRank, int] | None,
) -> Fate:
    """Return the fate of a process by its own words, else by its launcher's."""
    end, gone_ns, at_ns = None if diary is None else diary.end, facts.gone_ns.get(process), facts.ended_ns
    spoke = failure if end is None else end if end.kind == "exception" else None
    code = exception = message = place = None
    if launched is not None and (diary is not None or failure is None):
        code = launched[0].code
        if end is None:
            exception, message = _passed_on(launched[0].message or "", code)
        if diary is None:
            at_ns = launched[1]
    elif diary is not None and facts.code is not None and process == (facts.host, facts.child):
        code = facts.code if facts.code <= 128 else 128 - facts.code
    at_ns = at_ns if gone_ns is None else gone_ns
    if end is not None:
        at_ns, code = end.at_unix_ns, code if end.code is None else end.code
    if spoke is not None:
        exception, message, place, at_ns = spoke.exception, spoke.message, spoke.place, spoke.at_unix_ns
        code = code or 1
    named = diary or failure or (launched and launched[0])
    rank = None if named is None else named.rank
    sort, seen = sort_of(exception, message, code), facts.hang or facts.stall
    if signal_of(code) == signal.SIGABRT and sort == "failed" and seen is not None and rank in seen.waiting:
        sort = "timeout"  # NCCL's watchdog ended it while it was seen to wait: its text is on the job's own stderr
    return Fate(
        rank=rank,
        process=process,
        sort=sort,
        at_ns=at_ns,
        code=code,
        exception=exception,
        message=message,
        place=place,
        phase=None if end is None else end.phase,
        steps=0 if diary is None else _steps_of(diary, facts),
        silent=end is None,
        stepped=diary is not None,
        last_ns=0 if diary is None else diary.last_unix_ns,
        well=end is not None and end.kind == "exit",
        gone_ns=gone_ns,
        running=process in facts.running,
        left=facts.left.get(process),
    )


def _passed_on(message: str, code: int | None) -> tuple[str | None, str | None]:
    """Return the exception and its message in a launcher's text about a rank: a traceback ends with it."""
    lines = [line for line in message.splitlines() if line.strip()]
    if signal_of(code) == signal.SIGABRT and timeout_of(message) is not None:
        return "DistBackendError", message
    if not lines or "Traceback (most recent call last)" not in message:
        return None, None
    kind, _, text = lines[-1].partition(": ")
    return class_name(kind), text


def _of_a_helper(failure: FailedProcess, diaries: Sequence[DiaryFacts]) -> bool:
    """Whether the failed process was one that a rank started, and the rank ended steps after that: it did not fail of it."""
    return any(
        failure.at_unix_ns < diary.last_unix_ns
        and (failure.host, failure.restart) == (diary.host, diary.restart)
        and failure.pid != diary.pid
        and (failure.parent == diary.pid or failure.rank == diary.rank)
        for diary in diaries
    )


def _restart_count(facts: EndFacts) -> int:
    """Count how often the launcher had started the ranks again."""
    of_diaries = [diary.restart for diary in facts.diaries]
    return max([0, *of_diaries, *(f.restart for f in facts.failures), *(w.restart for w in facts.windows)])


def _last_of_each(diaries: Sequence[DiaryFacts]) -> list[DiaryFacts]:
    """Return the last process of each rank; of processes that train side by side without a group, each one."""
    if independent(diaries):
        return list(diaries)
    return list({d.rank: d for d in sorted(diaries, key=lambda d: (d.restart, d.start_unix_ns))}.values())


def without_end(diaries: Sequence[DiaryFacts]) -> tuple[int, ...]:
    """Return the ranks whose last process could not write its end, and so not all of its last steps, or called os._exit."""
    return tuple(sorted({diary.rank for diary in _last_of_each(diaries) if diary.end is None}))


def independent(diaries: Sequence[DiaryFacts]) -> int:
    """Count the processes that trained at the same time as rank 0 of 1 each: no process group joins them. 0: none did."""
    alone = sorted((d for d in diaries if d.world_size == 1), key=lambda d: d.start_unix_ns)
    together = {
        _process_key(diary)
        for at, one in enumerate(alone)
        for other in alone[at + 1 :]
        if _process_key(one) != _process_key(other) and other.start_unix_ns < one.last_unix_ns
        for diary in (one, other)
    }
    return len(together)


def _steps_of(diary: DiaryFacts, facts: EndFacts) -> int:
    """Return how many steps a process ended, by its diary, its last words, or what it left in memory."""
    left = facts.left.get(_process_key(diary))
    return max(diary.steps, 0 if diary.end is None else diary.end.steps, 0 if left is None else left.steps)


def _timed_and_profiled_steps(facts: EndFacts) -> tuple[int | None, int]:
    """Return the (timed, profiled) steps of the rank with the most; timed is None where no process told of itself."""
    profiled = max((len(report.profiled_ns) for report in facts.windows if report.status == "written"), default=0)
    if not facts.diaries:
        reported = facts.timed and (facts.processes or facts.failures) and not facts.windows
        return 0 if reported else None, profiled
    diaries = _last_of_each(facts.diaries)
    return max(d.steps - d.profiled for d in diaries), max(profiled, *(d.profiled for d in diaries))


T = TypeVar("T")


def diary_facts(layout: ProfileLayout) -> tuple[DiaryFacts, ...]:
    """Read the facts of every process that left a diary; one that cannot be read is left out."""
    paths = layout.diaries()
    return tuple(diary for diary in _readable_records(paths, _diary_facts) if diary is not None) if paths else ()


def _diary_facts(path: Path) -> DiaryFacts | None:
    """Return what a diary says of its process's end; None where it has no header yet."""
    import numpy as np

    from stepscope.records.profile import PROFILED
    from stepscope.store.diary import read_diary

    diary = read_diary(path)
    if diary is None:
        return None
    head = diary.header
    return DiaryFacts(
        rank=head.rank,
        world_size=head.world_size,
        host=head.host,
        pid=head.pid,
        restart=head.restart,
        start_unix_ns=head.start_unix_ns,
        last_unix_ns=head.start_unix_ns + int(np.nansum(diary.whole_ns)),
        steps=diary.steps,
        profiled=int(np.count_nonzero(diary.flags & PROFILED)),
        end=diary.end,
    )


def readable_records(paths: Sequence[Path], kind: type[T]) -> tuple[T, ...]:
    return tuple(_readable_records(paths, lambda path: read_record(path, kind)))


def _readable_records(paths: Iterable[Path], read: Callable[[Path], T]) -> list[T]:
    """Return what can be read of a job that was killed, or ran onto a full disk."""
    contents = []
    for path in paths:
        with suppress(DataError, OSError):  # the job may have removed its folder
            contents.append(read(path))
    return contents
