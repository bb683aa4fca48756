"""Who failed first, how, and what the end of a cell or a job is called: one function a kind of end. Pure.

Culprits come before victims: an out-of-memory error of any rank wins; ranks that were sent SIGTERM or SIGINT are collateral;
ranks that only noticed the end of another, or gave up waiting, are victims; of the rest the earliest failed first. A
launcher's own "root cause" is only the first one *seen*: it decides between ranks of which nothing else tells when.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from stepscope.records.profile import Deadline, End, EndKind, Hang
from stepscope.records.samples import Heartbeat
from stepscope.results.ends.evidence import SIGNALS, EndEvidence, Fate, Sort, differed, error_text, signal_of
from stepscope.results.ends.timeouts import timeout_of

_SIGNAL_NUMBER = re.compile(r"got signal: (\d{1,2})\b")
"""Matches the number in the message of torch's SignalException."""
BY_THE_HOST = ("data", "checkpoint")
"""Parts in which a rank does not wait for its device, whatever is queued there."""
APART_NS = 20_000_000
"""Ends of ranks lie so far apart when not one signal ended both."""
LATE_NS = 2_000_000_000
"""A rank that notices so long after the first timeout that the others are gone came late, and was not inside with them."""
PROGRESS_NS = 5_000_000_000
"""A rank that has moved within this time is at work, whatever its steps took before."""
_HARMED: tuple[Sort, ...] = ("timeout", "victim", "stopped", "failed")


def judge(evidence: EndEvidence) -> End:
    """Return the first end in the order of ``_KINDS`` that the evidence tells of."""
    return next(end for kind in _KINDS if (end := kind(evidence)) is not None)


def _ended_well(evidence: EndEvidence) -> End | None:
    failed = evidence.first("failed") + evidence.first("oom", "host_oom")
    if evidence.code == 0 and not any(fate.rank is not None and fate.stepped for fate in failed):
        return _finished_end(evidence)
    return None


def _finished_end(evidence: EndEvidence) -> End:
    if not evidence.steps and not evidence.windows:
        return End(kind="no-steps", message=evidence.unrecorded)
    return End(kind="ok" if evidence.windows or not evidence.asked else "short")


def _interrupted_end(evidence: EndEvidence) -> End | None:
    """Whoever ended stepscope itself ended the job, unless a rank had failed before."""
    sent_ns = min((at_ns for _, at_ns in evidence.signals), default=None)
    before = (*evidence.first("failed"), *evidence.first("oom", "host_oom"), *evidence.first("timeout"))
    if sent_ns is None or any(fate.at_ns <= sent_ns for fate in before):
        return None
    if evidence.hang is not None:
        return _hang_end(evidence)
    return End(kind="interrupted", signal=_signal_name(evidence.signals[0][0]))


def _oom_end(evidence: EndEvidence) -> End | None:
    culprits = evidence.first("oom", "host_oom")
    return _blamed_end("out-of-memory", culprits, evidence) if culprits else None


def _failed_end(evidence: EndEvidence) -> End | None:
    """Return the end by a rank that failed by itself, by exception, code or signal; None: none did."""
    culprits = evidence.first("failed")
    if not culprits:
        return None
    number = signal_of(culprits[0].code)
    if culprits[0].exception is not None:
        return _blamed_end("crash", culprits, evidence)
    return _blamed_end("exit-code" if number is None else _kill_kind(evidence, number), culprits, evidence)


def _past_deadline(evidence: EndEvidence) -> End | None:
    """Where every rank was at work nobody is to blame, the cell needs more time."""
    deadline, beats = evidence.deadline, evidence.beats or {}
    if deadline is None:
        return None
    running = [beat for rank, beat in beats.items() if rank not in evidence.finished]
    alike = evidence.calls is None or evidence.calls.differed is None  # else there is no progress to wait for
    if alike and len(beats) == evidence.world_size and running and all(_at_work(beat, deadline) for beat in running):
        last = min(running, key=lambda beat: beat.step)
        return End(kind="timeout", phase=last.phase, step=last.step, deadline=deadline)
    return _stopped_first("hang", evidence, None if evidence.calls is None else evidence.calls.hung)


def _at_work(beat: Heartbeat, deadline: Deadline) -> bool:
    """Whether the rank moved so recently that its next move was not overdue yet."""
    patience_ns = max(min(PROGRESS_NS, deadline.timeout_ns // 4), 2 * beat.longest_ns)
    return deadline.now_ns - beat.moved_ns <= patience_ns


def _hang_end_if_any(evidence: EndEvidence) -> End | None:
    return _hang_end(evidence) if evidence.hang is not None or evidence.first("timeout") else None


def _end_without_cause(evidence: EndEvidence) -> End | None:
    return _finished_end(evidence) if evidence.code is None and not evidence.first("victim") else None


def _launcher_ended(evidence: EndEvidence) -> End | None:
    launcher = evidence.launcher
    if not launcher.ended or any(victim.at_ns <= launcher.gone_ns for victim in evidence.first("victim")):
        return None
    return _from_outside(_kill_kind(evidence, signal_of(evidence.code)), evidence)


def _stopped_alone(evidence: EndEvidence) -> End | None:
    """Blame the rank that a signal stopped before its launcher stopped the others: it noticed that one first. None where
    they were stopped together, or by the launcher's own end, or where it is not known of all when they were gone."""
    ranked = {fate.rank: fate for fate in evidence.fates if fate.rank is not None}
    first = ranked.pop(evidence.launcher.noticed, None)  # type: ignore[arg-type]
    if first is None or first.sort != "stopped" or not ranked or evidence.launcher.ended:
        return None
    times = [fate.gone_ns for fate in (first, *ranked.values()) if fate.gone_ns is not None]
    apart_ns = -APART_NS if any(fate.sort == "victim" for fate in ranked.values()) else APART_NS
    alone = len(times) > len(ranked) and min(times[1:]) - times[0] > apart_ns
    return _blamed_end("killed", [first], evidence) if alone else None


def _stopped_end(evidence: EndEvidence) -> End | None:
    stopped, victims = evidence.first("stopped"), evidence.first("victim")
    if stopped and (not victims or stopped[0].at_ns < victims[0].at_ns):
        return _from_outside("killed", evidence)  # who left no word may have been stopped, too
    return None


def _vanished_end(evidence: EndEvidence) -> End | None:
    """Blame a rank that left neither words nor a code where others did: the first that was gone, or stopped to write."""
    silent = [fate for fate in evidence.fates if fate.silent and fate.sort == "fine" and fate.code is None]
    if not silent:
        return None
    noticed = evidence.launcher.noticed
    first = min(silent, key=lambda fate: (fate.at_ns, fate.last_ns, fate.rank != noticed))
    return _blamed_end(_kill_kind(evidence), [first], evidence)


def _lost_each_other(evidence: EndEvidence) -> End | None:
    """Blame who stopped first where heartbeats tell, else the first victim, for want of a better one."""
    victims = evidence.first("victim")
    if not victims or evidence.beats is None:
        return _blamed_end("crash", victims[:1], evidence) if victims else None
    first, statement = victims[0], next(iter(differed(evidence)), None)
    return replace(
        _stopped_first("lost", evidence, statement),
        exception=first.exception,
        message=first.message,
        facts=(f"rank {first.rank} reported: {error_text(first)}",),
    )


def _end_by_code(evidence: EndEvidence) -> End:
    if signal_of(evidence.code) is not None:
        return _from_outside(_kill_kind(evidence), evidence)
    return End(kind="exit-code", victims=_victim_ranks(evidence, ()))


_KINDS: tuple[Callable[[EndEvidence], End | None], ...] = (
    _ended_well,
    _interrupted_end,
    _oom_end,
    _failed_end,
    _past_deadline,
    _hang_end_if_any,
    _end_without_cause,
    _launcher_ended,
    _stopped_alone,
    _stopped_end,
    _vanished_end,
    _lost_each_other,
    _end_by_code,
)


def _kill_kind(evidence: EndEvidence, number: int | None = signal.SIGKILL) -> EndKind:
    """Return the kind of a kill: out of memory where the kernel says so, or where there was no memory left."""
    memory = number == signal.SIGKILL and (evidence.oom_kills or evidence.memory_low)
    return "out-of-memory" if memory else "killed"


def _blamed_end(kind: EndKind, culprits: Sequence[Fate], evidence: EndEvidence) -> End:
    """Return the end by processes that failed by themselves, the first of them before the others."""
    first = culprits[0]
    number = None if first.code is None or first.code >= 0 else -first.code
    if kind == "killed" and number is None:
        number = _signal_from_outside(evidence)
    step, exact = _failed_step(first, evidence)
    return End(
        kind=kind,
        ranks=tuple(dict.fromkeys(fate.rank for fate in culprits if fate.rank is not None)),
        victims=_victim_ranks(evidence, culprits),
        host=first.process[0] or None,
        exception=first.exception,
        message=first.message,
        place=first.place,
        step=step,
        step_exact=exact,
        phase=first.phase,
        rank_code=first.code,
        signal=_signal_name(number),
        since_ns=None if math.isinf(first.at_ns) else first.at_ns,
        of_host=first.sort == "host_oom",
        likely=kind == "out-of-memory" and first.sort not in ("oom", "host_oom") and not evidence.oom_kills,
        facts=first.facts,
    )


def _from_outside(kind: EndKind, evidence: EndEvidence) -> End:
    """Return the end by a scheduler, a user or the launcher's own: no rank failed."""
    beats, launcher = evidence.beats or {}, evidence.launcher
    last = min(beats.values(), key=lambda beat: (beat.step, beat.rank), default=None)
    return End(
        kind=kind,
        victims=_victim_ranks(evidence, ()),
        host=evidence.host or None if launcher.ended else None,
        phase=None if last is None else last.phase,
        step=None if last is None else last.step,
        signal=_signal_name(_signal_from_outside(evidence)) if kind == "killed" else None,
        launcher=launcher.ended,
        running=launcher.running if launcher.ended else (),
        facts=differed(evidence),
    )


def _hang_end(evidence: EndEvidence) -> End:
    """Return the end by a hang. Raises AssertionError without one."""
    hang = _hang_behind_timeouts(evidence) or evidence.hang
    assert hang is not None
    victims = tuple(rank for rank in hang.waiting if rank not in hang.ranks)
    return End(
        kind="hang", ranks=hang.ranks, victims=victims, host=hang.host, place=hang.place, step=hang.step, hang=hang
    )


def _stopped_first(kind: Literal["hang", "lost"], evidence: EndEvidence, statement: str | None) -> End:
    """Blame the rank that never came, else whom the flight recorders blame in their ``statement``, else the one behind."""
    beats, calls = evidence.beats or {}, evidence.calls
    absent = next((rank for rank in range(evidence.world_size) if rank not in beats), None)
    if absent is not None:
        return End(kind=kind, ranks=(absent,), phase="start", deadline=evidence.deadline)
    last, ahead = (end(beats.values(), key=_progress_key) for end in (min, max))
    if statement is not None and calls is not None and calls.rank is not None:
        last = beats[calls.rank]
    calls_of = last.collectives_enqueued, ahead.collectives_enqueued
    missed = statement is None and None not in calls_of and _progress_key(ahead)[0] > _progress_key(last)[0]
    hang = Hang(
        ranks=(last.rank,),
        silent_s=0.0 if evidence.deadline is None else (evidence.deadline.now_ns - ahead.moved_ns) / 1e9,
        step=last.step,
        said=statement,
        parts=((ahead.rank, f"collective {calls_of[1]} ({ahead.last_collective})"),) if missed else (),
    )
    return End(
        kind=kind,
        ranks=(last.rank,),
        host=last.host,
        phase=last.phase,
        step=last.step,
        hang=hang,
        deadline=evidence.deadline,
    )


def _progress_key(beat: Heartbeat) -> tuple[int, int, int]:
    return beat.collectives_enqueued or 0, beat.step, beat.time_ns


def _victim_ranks(evidence: EndEvidence, culprits: Sequence[Fate]) -> tuple[int, ...]:
    """Return the ranks that ended through others, in the order in which they did."""
    blamed = {fate.rank for fate in culprits}
    harmed = (fate.rank for fate in evidence.fates if fate not in culprits and fate.sort in _HARMED)
    return tuple(dict.fromkeys(rank for rank in harmed if rank is not None and rank not in blamed))


def _failed_step(first: Fate, evidence: EndEvidence) -> tuple[int | None, bool]:
    """Return the step in which a rank failed, and whether that is sure: a killed one has not written its last steps.

    Others got no further than it. Ranks that are told of to the last step bound it, and so does what it left in memory.
    """
    if evidence.furthest is None:
        return first.step, True
    if first.exception is not None or not first.silent or first.left is not None or first.rank is None:
        return (first.steps + 1 if first.steps else None), True
    steps = max(evidence.furthest, first.steps)
    return (steps + 1 if steps else None), bool(evidence.counted - {first.rank})


def _signal_from_outside(evidence: EndEvidence) -> int | None:
    """Return the signal that ended the command, or the first process that was stopped, by its code or its exception."""
    if number := signal_of(evidence.code):
        return number
    for fate in evidence.first("stopped"):
        if number := signal_of(fate.code):
            return number
        if fate.exception is not None:
            stated = _SIGNAL_NUMBER.search(fate.message or "")
            return int(stated[1]) if stated else signal.SIGINT if "Keyboard" in fate.exception else None
    return None


def _signal_name(number: int | None) -> str | None:
    return None if number is None else SIGNALS.get(number, f"signal {number}")


def _hang_behind_timeouts(evidence: EndEvidence) -> Hang | None:
    """Return the hang behind the timeouts of ranks, or None where no rank timed out.

    A timeout is the evidence of those that waited. At fault is who did not enter; where that is not known, nobody is
    accused. Flight recorders, stacks or a message that accuse ranks are trusted before what is known of the others.
    """
    timed_out = sorted((fate for fate in evidence.fates if fate.sort == "timeout"), key=lambda fate: fate.at_ns)
    if not timed_out:
        return None
    first, seen = timed_out[0], evidence.hang or evidence.stall
    ranks = {fate.rank for fate in timed_out if fate.rank is not None}
    messages = [message for fate in timed_out if (message := timeout_of(fate.message or "")) is not None]
    stances = dict.fromkeys(set(range(evidence.world_size)) - ranks, "unknown")
    stances |= {f.rank: stance(f, first) for f in evidence.fates if f.rank is not None and f.rank not in ranks}
    accused = {rank for message in messages for rank in message.named} or set(() if seen is None else seen.ranks)
    blamed = tuple(sorted(accused - ranks)) or never_came(stances)
    at = next((fate for fate in evidence.fates if blamed and fate.rank == blamed[0]), None)
    nothing = Hang(ranks=(), silent_s=0.0, step=0)
    confirmed = seen if seen is not None and blamed and seen.ranks == blamed else nothing
    parts = dict(confirmed.parts)
    for fate in evidence.fates:
        part = fate.phase if fate.left is None or fate.sort == "timeout" else fate.left.standing.doing
        if fate.rank is not None and part is not None:
            parts[fate.rank] = part
    waited_s = [message.seconds for message in messages if message.seconds is not None]
    waited_s += [(first.at_ns - first.last_ns) / 1e9] if first.stepped else []
    place = None if at is None or at.left is None else at.left.standing.place
    return Hang(
        ranks=blamed,
        waiting=tuple(
            sorted(ranks | {rank for rank, is_ in stances.items() if rank not in blamed and is_ == "inside"})
        ),
        silent_s=max([confirmed.silent_s, *waited_s]),
        step=max(fate.steps for fate in timed_out) + 1,
        said=confirmed.said,
        place=place or confirmed.place,
        host=None if at is None else at.process[0] or None,
        parts=tuple(sorted(parts.items())),
        timed_out=tuple(sorted(ranks)),
        timeout=first.message or None,
    )


def stance(fate: Fate, first: Fate) -> str:
    """Return where a rank was as ``first`` gave up: ``absent`` is who ended well before, came late or lived elsewhere,
    ``inside`` who waited, too; ``alive`` who lived, and nobody knows where."""
    late_ns = fate.at_ns - first.at_ns
    waits = None
    if fate.sort == "victim" and late_ns <= LATE_NS:
        waits = True
    elif fate.left is not None and (fate.left.standing.frames or first.at_ns - fate.left.seen_ns < LATE_NS):
        waits = fate.left.standing.waits
        by_nccl = signal_of(first.code) == signal.SIGABRT or "NCCL" in (first.message or "")
        if waits is False and by_nccl and fate.left.standing.doing not in BY_THE_HOST:
            waits = None  # a host that waits for its device may be anywhere
    left = fate.sort == "fine" and late_ns < 0 and fate.well
    alive = late_ns >= 0 and (fate.sort in ("stopped", "victim") or fate.gone_ns is not None or fate.running)
    if left or (fate.sort == "victim" and late_ns > LATE_NS) or (alive and waits is False):
        return "absent"
    return "inside" if waits else "alive" if alive else "unknown"


def never_came(stances: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that did not come to a collective, of those that did not give up there; empty: not known."""
    if absent := sorted(rank for rank, is_ in stances.items() if is_ == "absent"):
        return tuple(absent)
    elsewhere = [rank for rank, is_ in stances.items() if is_ != "inside"]
    # All the others were inside; the one of which nobody knows what it did lived, and was not.
    return tuple(elsewhere) if len(elsewhere) == 1 and stances[elsewhere[0]] == "alive" else ()
