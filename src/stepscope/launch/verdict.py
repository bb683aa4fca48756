"""How a broken worker group is judged: which rank failed first, and what the cell's status is. Pure.

torchrun's "root cause" is only the first failure *seen*. The rule here: an out-of-memory in any rank's error file wins;
ranks that got SIGTERM are collateral; ranks whose connection was closed or that timed out are victims; what remains
failed by itself, the earliest first. Where only collateral is known, nobody failed: the cause is outside. Else the rank
that stopped moving first.

The flight recorders that ranks left behind add which collective did not match.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from stepscope.core.units import format_duration
from stepscope.records.nccl import MISMATCHES
from stepscope.records.nouns import Status
from stepscope.records.samples import Heartbeat, RankError
from stepscope.store.layout import CellLayout
from stepscope.traces.flight import cell_findings, culprits, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsVerdict:
    """What ranks called and did not call, in words. ``rank``: the lowest that causes point at; None for nobody.

    hung: of a group that stood still. differed: only calls that were not the same on all ranks, for a group that broke
    instead, where calls that were never made follow from the break; None when there are none.
    """

    hung: str
    differed: str | None
    rank: int | None


def judge_calls(cell: CellLayout, world_size: int) -> CallsVerdict | None:
    """Return the verdict of all dumps in the cell's folder, or None when there is none or they show nothing."""
    findings = cell_findings(cell, world_size)
    sentence = summary(findings)
    if sentence is None:
        return None
    silent = [f.sentence for f in findings if f.kind == "incomplete_dump" and not f.cause]
    return CallsVerdict(
        hung="; ".join([sentence, *silent]),
        differed=summary(f for f in findings if f.kind in MISMATCHES),
        rank=next(iter(culprits(findings)), None),
    )


_FAILURE_BLOCK = re.compile(
    r"rank\s*:\s*(?P<rank>\d+)\s*\(local_rank:\s*\d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+)", re.MULTILINE
)


_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a rank that somebody stopped."""

PROGRESS_NS = 5_000_000_000
"""A rank that has moved within this time is at work, whatever its steps took before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The controller ended the group because the cell took longer than ``timeout_ns``.

    now_ns: wall clock when the heartbeats were read. total_steps: of the cell, warm-up included; None = not fixed.
    """

    timeout_ns: int
    now_ns: int
    total_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What goes into the cell's status record."""

    status: Status
    rank: int | None = None
    host: str | None = None
    phase: str | None = None
    reason: str = ""
    exception: str | None = None


def exit_codes(launcher_log: str) -> dict[int, int]:
    """Return the exit code of each failed rank, from torchrun's own report; negative = killed by that signal."""
    return {int(m["rank"]): int(m["code"]) for m in _FAILURE_BLOCK.finditer(launcher_log)}


def first_seen(launcher_log: str) -> int | None:
    """Return the rank that torchrun saw fail first, or None when it reports none.

    Its list of failures also has the ranks that it killed itself afterwards, with SIGKILL where SIGTERM did not do.
    """
    _, heading, rest = launcher_log.rpartition("Root Cause (first observed failure)")
    match = _FAILURE_BLOCK.search(rest) if heading else None
    return int(match["rank"]) if match else None


def judge(
    *,
    errors: Sequence[RankError],
    heartbeats: Sequence[Heartbeat],
    codes: Mapping[int, int],
    finished: frozenset[int],
    world_size: int,
    deadline: Deadline | None = None,
    seen_first: int | None = None,
    last_words: Mapping[int, str] = MappingProxyType({}),
    calls: CallsVerdict | None = None,
) -> Verdict:
    """Judge the cell that was running when its group ended.

    errors: error files of this cell (or of start-up); heartbeats: last one of each rank that wrote any;
    codes: from :func:`exit_codes`; finished: ranks whose final summary of this cell exists; seen_first: :func:`first_seen`;
    deadline: set when that is what ended the group; last_words: the last line each rank wrote to stderr.
    calls: what the flight recorders say that ranks left behind.
    """
    by_rank = {h.rank: h for h in heartbeats}
    for kind in ("oom", "host_oom"):
        of_kind = [e for e in errors if e.kind == kind]
        if of_kind:
            return _from_error(min(of_kind, key=_order), "oom" if kind == "oom" else "host_oom")
    own = [e for e in errors if e.kind in ("error", "usage")]
    victims = [e for e in errors if e.kind == "victim"]
    stopped = _stopped(errors, codes)
    silent = _silent(errors, codes, finished, world_size, alone=bool(stopped) and not victims)
    if own:
        return _from_error(min(own, key=_order), "error")
    if deadline is not None:
        running = [h for r, h in by_rank.items() if r not in finished]
        alike = calls is None or calls.differed is None  # else there is no progress to wait for
        if alike and len(by_rank) == world_size and running and all(_at_work(h, deadline) for h in running):
            return _too_slow(running, deadline)
        passed = f"the deadline of this cell ({format_duration(deadline.timeout_ns)}) passed"
        return _stuck(by_rank, world_size, "timeout", passed, calls)
    if silent:
        rank = seen_first if seen_first in silent else silent[0]
        if calls is not None and calls.differed is not None:  # says more than the library's last words
            verdict = _silent_death(rank, codes.get(rank), by_rank.get(rank), None)
            return replace(verdict, reason=f"{verdict.reason}; {calls.differed}")
        return _silent_death(rank, codes.get(rank), by_rank.get(rank), last_words.get(rank))
    if victims:
        broke = calls if calls is not None and calls.differed is not None else None
        verdict = _stuck(by_rank, world_size, "error", "ranks lost the connection to each other", broke)
        first = min(victims, key=_order)
        return Verdict(status="error", rank=verdict.rank, host=verdict.host, phase=verdict.phase,
                       reason=f"{verdict.reason}; rank {first.rank} reported: {first.exception}",
                       exception=first.exception)  # fmt: skip
    return _from_outside(by_rank, stopped, calls)


def _stopped(errors: Sequence[RankError], codes: Mapping[int, int]) -> list[int]:
    """Return the ranks that are known to have gone by SIGTERM."""
    by_code = {rank for rank, code in codes.items() if code in _TERMINATED}
    return sorted(by_code | {e.rank for e in errors if e.kind == "terminated"})


def _silent(
    errors: Sequence[RankError], codes: Mapping[int, int], finished: frozenset[int], world_size: int, *, alone: bool
) -> list[int]:
    """Return the ranks that exited without an error message: no error file, no summary, and not stopped by the launcher's
    SIGTERM.

    alone: ranks gone by SIGTERM are all that is known: then one whose end nobody saw may have gone by it, too.
    """
    spoke = {e.rank for e in errors}
    quiet = [r for r in range(world_size) if r not in spoke and r not in finished and codes.get(r) not in _TERMINATED]
    failed = [r for r in quiet if codes.get(r) not in (None, 0)]
    return failed or ([] if alone else quiet)


def _from_outside(heartbeats: Mapping[int, Heartbeat], stopped: Sequence[int], calls: CallsVerdict | None) -> Verdict:
    """Return the verdict where nobody failed: a scheduler, a user or the launcher ended the group."""
    last = min(heartbeats.values(), key=lambda h: (h.step, h.rank), default=None)
    who = (
        f"ranks {', '.join(map(str, stopped))}"
        if len(stopped) > 1
        else f"rank {stopped[0]}"
        if stopped
        else "the ranks"
    )
    where = "" if last is None else f" (last seen in {last.phase}, step {last.step})"
    differed = "" if calls is None or calls.differed is None else f"; {calls.differed}"
    return Verdict(
        status="killed",
        phase=None if last is None else last.phase,
        reason=f"SIGTERM from outside ended {who}{where}: a scheduler, a user or the launcher sent it, and no rank is known "
        f"to have failed{differed}",
    )


def _at_work(heartbeat: Heartbeat, deadline: Deadline) -> bool:
    """Whether the rank moved so recently that its next move was not overdue yet."""
    patience_ns = max(min(PROGRESS_NS, deadline.timeout_ns // 4), 2 * heartbeat.longest_ns)
    return deadline.now_ns - heartbeat.moved_ns <= patience_ns


def _too_slow(heartbeats: Sequence[Heartbeat], deadline: Deadline) -> Verdict:
    """Every rank did its work until the deadline: nobody is to blame, the cell needs more time."""
    last = min(heartbeats, key=lambda h: h.step)
    of_all = "" if deadline.total_steps is None else f" of {deadline.total_steps}"
    return Verdict(
        status="timeout",
        phase=last.phase,
        reason=f"still progressing at the deadline of {format_duration(deadline.timeout_ns)} "
        f"({last.phase}, step {last.step}{of_all}): raise measure.timeout_s (--set measure.timeout_s=SECONDS)",
    )


def _silent_death(rank: int, code: int | None, heartbeat: Heartbeat | None, last_words: str | None) -> Verdict:
    if code is None:
        what, status = "exited without an error message", "killed"
    elif code < 0:
        what, status = f"was killed by {signal.Signals(-code).name}", "killed"
    else:
        what, status = f"exited with code {code} without an exception", "error"
    hint = "; the kernel's out-of-memory killer does this: see `dmesg`" if code == -signal.SIGKILL else ""
    quote = f"; its last line: {last_words}" if last_words and not hint else ""
    where = "" if heartbeat is None else f" (last seen in {heartbeat.phase}, step {heartbeat.step})"
    return Verdict(
        status="killed" if status == "killed" else "error",
        rank=rank,
        host=None if heartbeat is None else heartbeat.host,
        phase=None if heartbeat is None else heartbeat.phase,
        reason=f"rank {rank} {what}{where}{hint}{quote}",
    )


def _stuck(
    heartbeats: Mapping[int, Heartbeat], world_size: int, status: Status, what: str, calls: CallsVerdict | None = None
) -> Verdict:
    absent = [r for r in range(world_size) if r not in heartbeats]
    if absent:
        return Verdict(status=status, rank=absent[0], host=None, phase="start",
                       reason=f"{what}; rank {absent[0]} never reached this cell")  # fmt: skip
    last = min(heartbeats.values(), key=lambda h: (h.collectives_enqueued or 0, h.step, h.time_ns))
    ahead = max(heartbeats.values(), key=lambda h: (h.collectives_enqueued or 0, h.step, h.time_ns))
    if calls is not None:
        last = last if calls.rank is None else heartbeats[calls.rank]
        evidence = calls.hung if status == "timeout" else calls.differed
        at = f"rank {last.rank} on {last.host}: {last.phase}, step {last.step}"
        return Verdict(status=status, rank=last.rank, host=last.host, phase=last.phase,
                       reason=f"{what}; {evidence} ({at})")  # fmt: skip
    reason = f"{what}; rank {last.rank} on {last.host} stopped first, in {last.phase}, step {last.step}"
    enqueued, most = last.collectives_enqueued, ahead.collectives_enqueued
    if enqueued is not None and most is not None and most > enqueued:
        reason += f": it never called collective {most} ({ahead.last_collective}), in which rank {ahead.rank} waits"
    return Verdict(status=status, rank=last.rank, host=last.host, phase=last.phase, reason=reason)


def _from_error(error: RankError, status: Status) -> Verdict:
    reason = f"rank {error.rank} on {error.host} in {error.phase}, step {error.step}: {error.exception}"
    return Verdict(
        status=status, rank=error.rank, host=error.host, phase=error.phase, reason=reason, exception=error.exception
    )


def _order(error: RankError) -> tuple[int, int]:
    return error.time_ns, error.rank
