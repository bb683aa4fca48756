"""Which rank failed first, how, and what the end of a job is called. Pure: from what ranks and launchers left behind.

An out-of-memory error of any rank wins; ranks that were sent SIGTERM or SIGINT are collateral; ranks that only noticed the
end of another are victims; of the rest the oldest failed first. torchrun's own "root cause" is only the first one *seen*.
Ranks that timed out waiting are victims, too: at fault is who did not come (timed_out.py).

``diary_facts`` and ``readable_records`` read what they left in the job's folder.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from stepscope.core.errors import DataError, failure_sign
from stepscope.launch.black_boxes import LeftState
from stepscope.launch.timed_out import LATE_NS, OtherRank, never_came, timeout_of
from stepscope.records.profile import (
    EndKind,
    FailedProcess,
    Hang,
    HookedProcess,
    JobEnd,
    LaunchedRank,
    RankEnd,
    WindowOfRank,
)
from stepscope.results.trainings import ProcessSpan, trainings
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

Process = tuple[str, int]
"""Host and process id."""

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that launchers, schedulers and users stop a job with."""

_SIGNALS = {int(number): number.name for number in signal.Signals}
_STOPPED = ("KeyboardInterrupt", "SignalException")
_SIGNAL_NUMBER = re.compile(r"got signal: (\d{1,2})\b")
"""Matches the number in the message of torch's SignalException."""
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_PEER_GONE = ("DistNetworkError", "DistStoreError")
_LAUNCHERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions by which a launcher passes on the failure of a rank."""

TOGETHER_NS = 5_000_000_000
"""Ranks that raise the same exception at the same place within this time failed side by side, none of another."""


BY_THE_HOST = ("data", "checkpoint")
"""Parts in which a rank does not wait for its device, whatever is queued there."""
APART_NS = 20_000_000
"""Ends of ranks lie so far apart when not one signal ended both."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What is known as a job ends. code: of the command, None where it is not ours; child: its process id; folder: in which
    it runs; ended_ns: its end.

    signalled: whether a signal ended the command itself, rather than something that it reports.

    signals: that were sent to stepscope: number, and when. gone_ns: when each process of this host was seen to be gone, on
    the wall clock. oom_kills: processes that the kernel killed for memory on this host while the job ran. memory_low: this
    host had next to no memory left. hang: what was seen of a job that stood still to its end; stall: the same where that was
    too short for a hang. left: what processes of this host leave that no end takes from them. running: those of them that
    still ran as the command had ended.
    timed: whether diaries were kept. asked: whether a window was asked for at the start.
    unrecorded: ends of processes of which no step is recorded.
    """

    code: int | None
    ended_ns: int
    host: str = ""
    folder: str = ""
    child: int | None = None
    signals: Sequence[tuple[int, int]] = ()
    diaries: Sequence[DiaryFacts] = ()
    processes: Sequence[HookedProcess] = ()
    failures: Sequence[FailedProcess] = ()
    windows: Sequence[WindowOfRank] = ()
    unrecorded: Sequence[RankEnd] = ()
    gone_ns: Mapping[Process, int] = field(default_factory=dict)
    oom_kills: int = 0
    memory_low: bool = False
    hang: Hang | None = None
    stall: Hang | None = None
    signalled: bool = False
    left: Mapping[Process, LeftState] = field(default_factory=dict)
    running: Collection[Process] = ()
    timed: bool = True
    asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fate:
    """How one process ended. sort: own (failed by itself), timeout (gave up waiting for others), victim and stopped (through
    others), or fine. rank: None where it is unknown."""

    rank: int | None
    process: Process
    sort: Literal["memory", "own", "timeout", "victim", "stopped", "fine"]
    at_ns: int
    code: int | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    phase: str | None = None
    steps: int = 0


def judge_end(facts: EndFacts) -> JobEnd:
    """Judge the end of the job: its kind, who failed, where, and who failed of it."""
    every = facts
    facts = _of_last_training(every)
    fates = _fates(facts)
    if facts.code and facts is not every and all(fate.sort == "fine" for fate in fates):
        facts, fates = every, _fates(every)  # the command passes on how an earlier one ended
    kind, culprits = _judged(facts, fates)
    first = culprits[0] if culprits else None
    launcher = kind in ("killed", "out-of-memory") and not culprits and _launcher_ended(facts)
    number = None if first is None or first.code is None or first.code >= 0 else -first.code
    if kind == "killed" and number is None:
        number = _signal_of(facts.code) or _stopping(fates)
    if kind == "interrupted" and facts.signals:
        number = facts.signals[0][0]
    hang = None if kind != "hang" else _hang(facts, fates) or facts.hang
    step, sure = _step(first, facts)
    blamed = hang.ranks if hang is not None else tuple(sorted({f.rank for f in culprits if f.rank is not None}))
    at_fault = {fate.process for fate in culprits}
    victims = (
        set(hang.waiting)
        if hang is not None
        else {
            f.rank
            for f in fates
            if f.rank is not None and f.process not in at_fault and f.sort in ("timeout", "victim", "stopped", "own")
        }
    )
    timed, profiled = _steps(facts)
    stated = [int(p.world_size) for p in facts.processes if p.world_size is not None and p.world_size.isdigit()]
    written = any(report.status == "written" for report in facts.windows)
    return JobEnd(
        kind=kind,
        code=facts.code,
        world_size=max((d.world_size for d in facts.diaries), default=None) or max(stated, default=None),
        ranks=blamed,
        victims=tuple(sorted(victims - set(blamed))) if kind not in ("ok", "short", "no-steps", "interrupted") else (),
        host=hang.host
        if hang is not None
        else first.process[0] or None
        if first is not None
        else facts.host or None
        if launcher
        else None,
        exception=None if first is None else first.exception,
        message=_unrecorded(facts)
        if first is None and kind == "no-steps"
        else None
        if first is None
        else first.message,
        place=_below(hang.place if hang is not None else None if first is None else first.place, facts.folder),
        step=hang.step if hang is not None else step,
        step_exact=hang is not None or sure,
        phase=None if first is None else first.phase,
        launcher=launcher,
        running=_running(facts) if launcher else (),
        rank_code=None if first is None else first.code,
        signal=None if number is None else _SIGNALS.get(number, f"signal {number}"),
        likely=kind == "out-of-memory" and first is not None and first.sort != "memory" and not facts.oom_kills,
        hang=hang,
        steps_timed=timed,
        steps_profiled=profiled,
        restarts=_all_restarts(every),
        independent=independent(every.diaries),
        no_window=None if written else next((report.reason for report in facts.windows if report.reason), None),
    )


def _trainings(diaries: Sequence[DiaryFacts]) -> list[list[list[DiaryFacts]]]:
    return trainings(
        diaries, lambda d: ProcessSpan(rank=d.rank, restart=d.restart, start_ns=d.start_unix_ns, end_ns=d.last_unix_ns)
    )


def _of_last_training(facts: EndFacts) -> EndFacts:
    """Leave out the processes of trainings that had ended before the last one began."""
    runs = _trainings(facts.diaries)
    if len(runs) <= 1 or independent(facts.diaries):
        return facts
    last = [diary for attempt in runs[-1] for diary in attempt]
    before = {(d.host, d.pid) for d in facts.diaries} - {(d.host, d.pid) for d in last}
    begin_ns = min(d.start_unix_ns for d in last)
    failures = [
        f for f in facts.failures if (f.host, f.pid) not in before and (f.at_unix_ns >= begin_ns or not f.ranks)
    ]
    return replace(facts, diaries=last, failures=failures)


def _step(first: _Fate | None, facts: EndFacts) -> tuple[int | None, bool]:
    """Return the step in which a rank failed, and whether that is sure: a killed one has not written its last steps.

    Others got no further than it. Ranks that are told of to the last step bound it, and so does what it left in memory.
    """
    if first is None or not facts.diaries:
        return None, True
    last = _last_of_each(facts.diaries)
    ends = {(d.host, d.pid): d.end for d in last}
    silent = first.exception is None and ends.get(first.process) is None and first.process not in facts.left
    if not silent or first.rank is None:
        return (first.steps + 1 if first.steps else None), True
    steps = max(max(d.steps, d.end.steps if d.end else 0, _left_steps(facts, d)) for d in last)
    steps = max(steps, first.steps)
    sure = any(d.rank != first.rank and (d.end is not None or (d.host, d.pid) in facts.left) for d in last)
    return (steps + 1 if steps else None), sure


def _left_steps(facts: EndFacts, diary: DiaryFacts) -> int:
    left = facts.left.get((diary.host, diary.pid))
    return 0 if left is None else left.steps


def _judged(facts: EndFacts, fates: Sequence[_Fate]) -> tuple[EndKind, list[_Fate]]:
    """Return the kind, and the processes at fault, the first to fail before the others."""
    own = _first_of(f for f in fates if f.sort == "own")
    memory = _first_of(f for f in fates if f.sort == "memory")
    timed_out = _first_of(f for f in fates if f.sort == "timeout")
    if facts.code == 0:
        ranked = [f for f in own + memory if f.rank is not None and _stepped(f, facts)]
        if not ranked:
            return _kind_of_success(facts), []
    sent = min((at for _, at in facts.signals), default=None)
    if sent is not None and all(f.at_ns > sent for f in own + memory + timed_out):
        return ("hang" if facts.hang is not None else "interrupted"), []
    if memory:
        return "out-of-memory", memory
    if own:
        return _kind_of_failure(own[0], facts), own
    if facts.hang is not None or timed_out:
        return "hang", []
    if facts.code is None and not any(f.sort == "victim" for f in fates):
        return _kind_of_success(facts), []
    stopped = _first_of(f for f in fates if f.sort == "stopped")
    victims = _first_of(f for f in fates if f.sort == "victim")
    launcher_gone = facts.gone_ns.get((facts.host, facts.child or 0), facts.ended_ns)
    if _launcher_ended(facts) and all(victim.at_ns > launcher_gone for victim in victims):
        number = _signal_of(facts.code)
        return ("killed" if number != signal.SIGKILL else _kind_of_kill(facts)), []
    if alone := _stopped_alone(facts, fates):
        return "killed", alone
    if stopped and (not victims or stopped[0].at_ns < victims[0].at_ns):
        return "killed", []  # who left no word may have been stopped, too
    if silent := _vanished(facts, fates):
        return _kind_of_kill(facts), silent
    if victims:
        return "crash", victims[:1]
    if _signal_of(facts.code) is not None:
        return _kind_of_kill(facts), []
    return "exit-code", []


def _launcher_ended(facts: EndFacts) -> bool:
    """Whether a signal ended what starts the ranks, and no rank before it."""
    ranks = {(d.host, d.pid) for d in facts.diaries}
    ranks |= {(p.host, p.pid) for p in facts.processes if p.rank is not None}
    ranks |= {(f.host, f.pid) for f in facts.failures if f.rank is not None}
    if not ranks or (facts.host, facts.child) in ranks:
        return False
    if any(_name(failure.exception) == "SignalException" and failure.rank is None for failure in facts.failures):
        return True
    return _signal_of(facts.code) is not None and (facts.signalled or bool(_running(facts)))


def _running(facts: EndFacts) -> tuple[tuple[int, int], ...]:
    """Return the ranks that still ran as the command had ended, with their process ids."""
    ranks = {(p.host, p.pid): int(p.rank) for p in facts.processes if p.rank is not None and p.rank.isdigit()}
    ranks |= {(d.host, d.pid): d.rank for d in facts.diaries}
    return tuple(sorted((ranks[process], process[1]) for process in facts.running if process in ranks))


def _stopped_alone(facts: EndFacts, fates: Sequence[_Fate]) -> list[_Fate]:
    """Return the rank that a signal stopped before its launcher stopped the others: it noticed that one first. Empty where
    they were stopped together, or by the launcher's own end, or where it is not known of all when they were gone."""
    ranked = {f.rank: f for f in fates if f.rank is not None}
    noticed = next((failure.ranks[0].rank for failure in facts.failures if failure.ranks), None)
    first = None if noticed is None else ranked.pop(noticed, None)
    if first is None or first.sort != "stopped" or not ranked or _launcher_ended(facts):
        return []
    gone = [facts.gone_ns.get(f.process) for f in (first, *ranked.values())]
    times = [at_ns for at_ns in gone if at_ns is not None]
    if len(times) < len(gone):
        return []
    lost_it = any(f.sort == "victim" for f in ranked.values())
    return [first] if min(times[1:]) - times[0] > (-APART_NS if lost_it else APART_NS) else []


def _hang(facts: EndFacts, fates: Sequence[_Fate]) -> Hang | None:
    """Return the hang behind the timeouts of ranks, or None where no rank timed out."""
    timed_out = sorted((f for f in fates if f.sort == "timeout"), key=lambda f: f.at_ns)
    if not timed_out:
        return None
    first, seen = timed_out[0], facts.hang or facts.stall
    ranks = {f.rank for f in timed_out if f.rank is not None}
    messages = [timeout_of(f.message or "") for f in timed_out]
    named = {rank for message in messages if message is not None for rank in message.named}
    world = max([d.world_size for d in facts.diaries] + [f.world_size or 0 for f in facts.failures], default=0)
    others = {rank: OtherRank() for rank in range(world) if rank not in ranks}
    others |= {f.rank: _other(f, first, facts) for f in fates if f.rank is not None and f.rank not in ranks}
    blamed = never_came(ranks, others, named or (seen.ranks if seen is not None else ()))
    at = next((f for f in fates if blamed and f.rank == blamed[0]), None)
    stands = None if at is None or at.process not in facts.left else facts.left[at.process].standing
    confirmed = seen if seen is not None and blamed and seen.ranks == blamed else None
    parts = {} if confirmed is None else dict(confirmed.parts)
    parts |= {f.rank: part for f in fates if f.rank is not None and (part := _part(f, facts)) is not None}
    wrote = next((d for d in facts.diaries if (d.host, d.pid) == first.process), None)
    waited_s = [message.seconds for message in messages if message is not None and message.seconds is not None]
    waited_s += [] if confirmed is None else [confirmed.silent_s]
    waited_s += [] if wrote is None else [(first.at_ns - wrote.last_unix_ns) / 1e9]
    return Hang(
        ranks=blamed,
        waiting=tuple(sorted(ranks | {rank for rank, other in others.items() if rank not in blamed and other.waits})),
        silent_s=max(waited_s, default=0.0),
        step=max(f.steps for f in timed_out) + 1,
        said=None if confirmed is None else confirmed.said,
        place=(stands.place if stands is not None else None) or (None if confirmed is None else confirmed.place),
        host=None if at is None else at.process[0] or None,
        parts=tuple(sorted(parts.items())),
        timed_out=tuple(sorted(ranks)),
        timeout=first.message or None,
    )


def _other(fate: _Fate, first: _Fate, facts: EndFacts) -> OtherRank:
    """Describe a rank that did not time out. first: the fate of the first that did."""
    left = facts.left.get(fate.process)
    waits = None
    if fate.sort == "victim" and fate.at_ns - first.at_ns <= LATE_NS:
        waits = True
    elif left is not None and (left.standing.frames or first.at_ns - left.seen_ns < LATE_NS):
        waits = left.standing.waits
        if waits is False and _by_nccl(first) and left.standing.doing not in BY_THE_HOST:
            waits = None  # a host that waits for its device may be anywhere
    after = fate.at_ns >= first.at_ns
    return OtherRank(
        left=fate.sort == "fine" and not after and _ended_well(fate, facts),
        alive=after
        and (fate.sort in ("stopped", "victim") or fate.process in facts.gone_ns or fate.process in facts.running),
        waits=waits,
        late=fate.sort == "victim" and fate.at_ns - first.at_ns > LATE_NS,
    )


def _by_nccl(fate: _Fate) -> bool:
    return _signal_of(fate.code) == signal.SIGABRT or "NCCL" in (fate.message or "")


def _ended_well(fate: _Fate, facts: EndFacts) -> bool:
    return any((d.host, d.pid) == fate.process and d.end is not None and d.end.kind == "exit" for d in facts.diaries)


def _part(fate: _Fate, facts: EndFacts) -> str | None:
    """Return what a rank did at its end, where it left word of it."""
    left = facts.left.get(fate.process)
    return fate.phase if left is None or fate.sort == "timeout" else left.standing.doing


def _stopping(fates: Sequence[_Fate]) -> int | None:
    """Return the signal that the first stopped process had, as its code or its exception says."""
    for fate in _first_of(f for f in fates if f.sort == "stopped"):
        if number := _signal_of(fate.code):
            return number
        if fate.exception is not None:
            named = _SIGNAL_NUMBER.search(fate.message or "")
            return int(named[1]) if named else signal.SIGINT if "Keyboard" in fate.exception else None
    return None


def _kind_of_failure(first: _Fate, facts: EndFacts) -> EndKind:
    if first.exception is not None:
        return "crash"
    if first.code is not None and _signal_of(first.code) is not None:
        return _kind_of_kill(facts) if _signal_of(first.code) == signal.SIGKILL else "killed"
    return "exit-code"


def _kind_of_kill(facts: EndFacts) -> EndKind:
    """Return the kind of a SIGKILL: out of memory where the kernel says so, or where there was no memory left."""
    return "out-of-memory" if facts.oom_kills or facts.memory_low else "killed"


def _kind_of_success(facts: EndFacts) -> EndKind:
    timed, profiled = _steps(facts)
    if not timed and not profiled and not facts.windows:
        return "no-steps"
    return "ok" if facts.windows or not facts.asked else "short"


def _unrecorded(facts: EndFacts) -> str | None:
    """Say why a job that ended well left no step, in the words of the first rank that knows."""
    return next((report.message for report in facts.unrecorded if report.message), None)


def _fates(facts: EndFacts) -> tuple[_Fate, ...]:
    """Return the fates of the last process of each rank, and of processes that failed before they were any rank."""
    launched = {
        (failure.host, rank.pid): (rank, failure.at_unix_ns) for failure in facts.failures for rank in failure.ranks
    }
    raised = {
        (failure.host, failure.pid): failure for failure in facts.failures if _name(failure.exception) not in _LAUNCHERS
    }
    fates: dict[Process, _Fate] = {}
    last = _restarts(facts)
    for diary in _last_of_each([diary for diary in facts.diaries if diary.restart == last]):
        process = diary.host, diary.pid
        fates[process] = _fate(diary, raised.get(process), launched.get(process, (None, 0))[0], facts)
    for process, failure in raised.items():
        if process not in fates and failure.restart == last and not _of_a_helper(failure, facts.diaries):
            fate = _Fate(rank=failure.rank, process=process, sort="own", at_ns=failure.at_unix_ns, code=1)
            fates[process] = _classified(_raised(fate, failure))
    for process, (rank, at_ns) in launched.items():
        if process not in fates:
            at_ns = facts.gone_ns.get(process, at_ns)
            fate = _Fate(rank=rank.rank, process=process, sort="own", at_ns=at_ns, code=rank.code)
            fates[process] = _classified(_of_message(fate, rank.message))
    return tuple(sorted((_aborted(f, facts) for f in fates.values()), key=lambda f: (f.at_ns, f.process)))


def _aborted(fate: _Fate, facts: EndFacts) -> _Fate:
    """Correct the fate of a rank that NCCL's watchdog ended by SIGABRT while it was seen to wait: its text is on the job's
    own stderr."""
    seen = facts.hang or facts.stall
    if (
        fate.sort == "own"
        and _signal_of(fate.code) == signal.SIGABRT
        and seen is not None
        and fate.rank in seen.waiting
    ):
        return replace(fate, sort="timeout")
    return fate


def _of_a_helper(failure: FailedProcess, diaries: Sequence[DiaryFacts]) -> bool:
    """Whether the failed process was one that a rank started, and the rank ended steps after that: it did not fail of it."""
    return any(
        failure.at_unix_ns < diary.last_unix_ns
        and (failure.host, failure.restart) == (diary.host, diary.restart)
        and failure.pid != diary.pid
        and (failure.parent == diary.pid or failure.rank == diary.rank)
        for diary in diaries
    )


def _fate(diary: DiaryFacts, failure: FailedProcess | None, launched: LaunchedRank | None, facts: EndFacts) -> _Fate:
    """Return the fate of a process that stepped."""
    process, end = (diary.host, diary.pid), diary.end
    code = None if launched is None else launched.code
    if code is None and process == (facts.host, facts.child):
        code = None if facts.code is None else facts.code if facts.code <= 128 else 128 - facts.code
    fate = _Fate(
        rank=diary.rank,
        process=process,
        sort="fine",
        at_ns=facts.gone_ns.get(process, facts.ended_ns),
        code=code,
        steps=max(diary.steps, 0 if end is None else end.steps, _left_steps(facts, diary)),
        phase=None if end is None else end.phase,
    )
    if end is not None:
        fate = replace(fate, at_ns=end.at_unix_ns, code=code if end.code is None else end.code)
        if end.kind == "exception":
            fate = _raised(fate, end)
    elif failure is not None:
        fate = _raised(fate, failure)
    elif launched is not None:
        fate = _of_message(fate, launched.message)
    return _classified(fate)


def _raised(fate: _Fate, failure: RankEnd | FailedProcess) -> _Fate:
    named = {name: getattr(failure, name) for name in ("exception", "message", "place")}
    return replace(fate, at_ns=failure.at_unix_ns, code=fate.code or 1, **named)


def _of_message(fate: _Fate, message: str | None) -> _Fate:
    """Read a launcher's text about a rank: a traceback ends with the exception."""
    lines = [line for line in (message or "").splitlines() if line.strip()]
    if _signal_of(fate.code) == signal.SIGABRT and timeout_of(message or "") is not None:
        return replace(fate, exception="DistBackendError", message=message)
    if not lines or "Traceback (most recent call last)" not in (message or ""):
        return fate
    kind, _, text = lines[-1].partition(": ")
    return replace(fate, exception=_name(kind), message=text)


def _name(exception: str) -> str:
    """Return the name of an exception's class, without its module."""
    return exception.rpartition(".")[2]


def _classified(fate: _Fate) -> _Fate:
    if fate.exception is None:
        number = _signal_of(fate.code)
        if number is not None:
            return replace(fate, sort="stopped" if number in STOPPING else "own")
        return replace(fate, sort="own" if fate.code else "fine")
    name, sign = _name(fate.exception), failure_sign(fate.message or "")
    if name not in _STOPPED and sign not in ("oom", "host_oom") and timeout_of(fate.message or "") is not None:
        return replace(fate, sort="timeout")
    if name in _STOPPED:
        return replace(fate, sort="stopped")
    if name in _OUT_OF_MEMORY or sign in ("oom", "host_oom"):
        return replace(fate, sort="memory")
    return replace(fate, sort="victim" if name in _PEER_GONE or sign == "victim" else "own")


def _all_restarts(facts: EndFacts) -> int:
    """Count how often the launchers of all trainings together had started the ranks again."""
    before = _trainings(facts.diaries)[:-1]
    return _restarts(_of_last_training(facts)) + sum(max(d.restart for d in attempts[-1]) for attempts in before)


def _restarts(facts: EndFacts) -> int:
    """Count how often the launcher had started the ranks again."""
    of_diaries = [diary.restart for diary in facts.diaries]
    return max([0, *of_diaries, *(f.restart for f in facts.failures), *(w.restart for w in facts.windows)])


def _last_of_each(diaries: Sequence[DiaryFacts]) -> list[DiaryFacts]:
    """Return the last process of each rank; of processes that train side by side without a group, each one."""
    if independent(diaries):
        return list(diaries)
    last: dict[int, DiaryFacts] = {}
    for diary in sorted(diaries, key=lambda d: (d.restart, d.start_unix_ns)):
        last[diary.rank] = diary
    return list(last.values())


def without_end(diaries: Sequence[DiaryFacts]) -> tuple[int, ...]:
    """Return the ranks whose last process could not write its end, and so not all of its last steps, or called os._exit."""
    return tuple(sorted({diary.rank for diary in _last_of_each(diaries) if diary.end is None}))


def independent(diaries: Sequence[DiaryFacts]) -> int:
    """Count the processes that trained at the same time as rank 0 of 1 each: no process group joins them. 0: none did."""
    alone = sorted((d for d in diaries if d.world_size == 1), key=lambda d: d.start_unix_ns)
    together = {
        (diary.host, diary.pid)
        for at, one in enumerate(alone)
        for other in alone[at + 1 :]
        if (one.host, one.pid) != (other.host, other.pid) and other.start_unix_ns < one.last_unix_ns
        for diary in (one, other)
    }
    return len(together)


def _first_of(fates: Iterable[_Fate]) -> list[_Fate]:
    """Return the oldest of them; with it those that failed of the same thing at the same time."""
    ordered = sorted(fates, key=lambda f: (f.at_ns, f.rank is None, f.rank or 0))
    if not ordered:
        return []
    first = ordered[0]
    if first.rank is None and (ranked := [f for f in ordered if f.rank is not None]):
        first = ranked[0]  # a launcher's own exception follows that of a rank
    alike = [f for f in ordered if (f.exception, f.place, f.code) == (first.exception, first.place, first.code)]
    return [first, *(f for f in alike if f is not first and f.at_ns - first.at_ns <= TOGETHER_NS)]


def _vanished(facts: EndFacts, fates: Sequence[_Fate]) -> list[_Fate]:
    """Return a rank that left neither words nor a code where others did: the first that was gone, or that has stopped to
    write."""
    accounted = {f.process for f in fates if f.sort != "fine" or f.code is not None}
    diaries = {(d.host, d.pid): d for d in _last_of_each(facts.diaries) if d.end is None}
    silent = [f for f in fates if f.process in diaries and f.process not in accounted]
    if not silent:
        return []
    return [min(silent, key=lambda f: (facts.gone_ns.get(f.process, facts.ended_ns), diaries[f.process].last_unix_ns))]


def _stepped(fate: _Fate, facts: EndFacts) -> bool:
    return any((d.host, d.pid) == fate.process for d in facts.diaries)


def _steps(facts: EndFacts) -> tuple[int | None, int]:
    """Return the (timed, profiled) steps of the rank with the most; timed is None where no process told of itself."""
    profiled = max((len(report.profiled_ns) for report in facts.windows if report.status == "written"), default=0)
    if not facts.diaries:
        reported = facts.timed and (facts.processes or facts.failures) and not facts.windows
        return 0 if reported else None, profiled
    diaries = _last_of_each(facts.diaries)
    return max(d.steps - d.profiled for d in diaries), max(profiled, *(d.profiled for d in diaries))


def _below(place: str | None, folder: str) -> str | None:
    """Return a place with its file by the path from the job's folder."""
    return place.removeprefix(f"{folder}/") if place and folder else place


def _signal_of(code: int | None) -> int | None:
    """Return the signal that a code stands for, negative as Python gives it, or 128 more as a shell does; None where none
    does."""
    number = 0 if code is None else -code if code < 0 else code - 128
    return number if number in _SIGNALS else None


T = TypeVar("T")


def diary_facts(layout: ProfileLayout) -> tuple[DiaryFacts, ...]:
    """Read the facts of every process that left a diary; one that cannot be read is left out."""
    paths = layout.diaries()
    return tuple(diary for diary in _readable(paths, _diary_facts) if diary is not None) if paths else ()


def _diary_facts(path: Path) -> DiaryFacts | None:
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
    return tuple(_readable(paths, lambda path: read_record(path, kind)))


def _readable(paths: Iterable[Path], read: Callable[[Path], T]) -> list[T]:
    """Return what can be read of a job that was killed, or ran onto a full disk."""
    contents = []
    for path in paths:
        with suppress(DataError, OSError):  # the job may have removed its folder
            contents.append(read(path))
    return contents
