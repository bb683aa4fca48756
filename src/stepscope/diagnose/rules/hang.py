"""The job hangs: which collective the ranks wait in, and which ranks never entered it or never leave it.

What
----
Compares the flight recorders of all ranks. Each cause is a finding with the ranks' numbers: a rank that never called a
collective in which others wait, a rank inside a collective that others have left, a collective that all ranks entered
and none leaves, a rank without a dump. Waits that follow from a cause are counted, not repeated. `collective-mismatch`
reports ranks that called *different* collectives. Without dumps, the timeouts that NCCL's watchdog writes into the job's
log show which ranks waited in which call; a rank without such a line is named as the one to look at, not as the cause.

Why
---
The rank that reports the timeout is a victim; the cause is the rank that the others wait for.

Known problems
--------------
Dumps of a job that continues show who was behind at that moment, which is not a hang; those of an interrupted cell of
`bench` are therefore not looked at for waits. A recorder that keeps few calls
(TORCH_FR_BUFFER_SIZE) may have lost the call where ranks diverged; a lost call never counts as a missing call. A rank
that crashed leaves no dump.

References
----------
PyTorch tutorial, Flight Recorder for debugging stuck jobs; NVIDIA resiliency extension, attribution tests: two sets of 16
ranks with two broken on purpose, both found (read 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.units import format_duration
from stepscope.core.words import counted, grouped, in_words, plural
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, advise, finding, skipped
from stepscope.records.nccl import MISMATCHES, FlightFinding, WatchdogTimeout
from stepscope.results.evidence import Evidence

_MOST_CALLS = 5
"""Further calls with a timeout that a finding names."""

_INTERRUPTED = (
    "the run was interrupted: the calls that its ranks were in at that moment do not show a hang; a cell that hangs "
    "ends at its deadline (--set measure.timeout_s=SECONDS)"
)

MOST_WAITING = Limit(0, unit="ranks waiting for a call of another rank", source="a finished job has no waiting rank")


def check(evidence: Evidence) -> Statement:
    if not evidence.flight and evidence.watchdog:
        worlds = {run.world_size for run in evidence.runs}
        return _of_log(evidence.watchdog, world=worlds.pop() if len(worlds) == 1 else None)
    if not evidence.flight:
        if evidence.flight_recorded:
            return "flight recorders of all ranks: no rank waits for a call of another rank"
        if any(cell.run.status == "interrupted" for cell in evidence.cells):
            return skipped(_INTERRUPTED)
        return RULE.blind
    waits = [f for f in evidence.flight if f.kind not in MISMATCHES]
    named: set[int] = set()
    findings = []
    for cause in waits:
        # The first cause of each rank: a rank that is stuck somewhere is missing everywhere after.
        if cause.cause and (not cause.ranks or not named.issuperset(cause.ranks)):
            findings.append(_report(cause, evidence))
        named.update(cause.ranks if cause.cause else ())
    what = "ranks called different things" if len(waits) < len(evidence.flight) else "no single cause"
    return findings or f"{counted(len(evidence.flight), 'difference')} between ranks: {what}"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = tuple(ranks)
    return f"{plural(len(numbers), 'rank')} {in_words(numbers)}"


def _report(cause: FlightFinding, evidence: Evidence) -> Finding:
    others = sum(not f.cause for f in evidence.flight)
    follow = "follow" if others > 1 else "follows"
    who, one = _ranks(cause.ranks), len(cause.ranks) == 1
    group = cause.group_description or (f"group {cause.group}" if cause.group else "")
    of = f"{f' of {group}' if group else ''}: {cause.expected or 'a collective'}"
    call = f"collective{'' if cause.sequence is None else f' {cause.sequence}'}"
    advice = [
        advise(f"see what {who} {'does' if one else 'do'} instead", "py-spy dump --native --pid PID"),
        advise(
            "usual reasons: a swallowed exception, a branch that depends on the rank, uneven data (one rank has "
            "an extra batch), checkpoint or evaluation on one rank only, a slow or full disk"
        ),
        advise("record more calls next time", "export TORCH_FR_BUFFER_SIZE=20000"),
    ]
    if not cause.ranks:
        title = f"all ranks hang in {call}{of}"
        advice = [
            advise(
                "every rank is in the collective: look for network and device errors on all hosts (kernel log, "
                "link counters)"
            ),
            advise("if the backend is NCCL, read its log", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET"),
        ]
    elif cause.kind == "stuck_inside":
        title = f"{who} {'is' if one else 'are'} stuck inside {call}{of}"
        advice = [
            advise(f"on the host of {who}: look for device errors", "dmesg | grep -i -E 'xid|nvrm|amdgpu'"),
            advise("check whether a thread holds the interpreter lock", "py-spy dump --native --pid PID"),
        ]
    elif cause.kind == "incomplete_dump":
        title = f"{who} left no dump while the others wait in {call}{of}"
    else:
        title = f"{who} never entered {'the point-to-point call' if cause.is_p2p else call}{of}"
    return finding(
        title,
        cause.sentence,
        bool(cause.waiting)
        and cause.waiting != cause.ranks
        and f"{counted(len(cause.waiting), 'rank')} waiting there: {in_words(cause.waiting)}",
        others > 0 and f"{counted(others, 'other wait')} in other groups or later calls {follow}",
        [
            f"the log agrees: {line}"
            for (sequence, op), line in _calls(evidence.watchdog).items()
            if sequence == cause.sequence and (cause.expected or "").startswith(op)
        ],
        severity="problem",
        confidence="likely: a rank without a dump was killed or does not respond"
        if cause.kind == "incomplete_dump"
        else "certain at the time of the dump; in a job that continued, it only shows which rank was behind",
        advice=advice,
        priority="failure",
        of=who if cause.ranks else None,
    )


def _calls(watchdog: Iterable[WatchdogTimeout]) -> dict[tuple[int, str], str]:
    """Map (sequence, op) to the ranks that waited in it until the timeout, the earliest call first."""
    lines = {}
    for (sequence, op), reports in sorted(grouped(watchdog, lambda timeout: (timeout.sequence, timeout.op)).items()):
        ranks = _ranks(sorted({t.member if t.rank is None else t.rank for t in reports}))
        elements = {t.elements for t in reports}
        size = "".join(f" of {number:,} elements" for number in elements if number is not None and len(elements) == 1)
        lines[sequence, op] = (
            f"{ranks} timed out in collective {sequence}, {op}{size}, after "
            f"{format_duration(max(t.timeout_ms for t in reports) * 1e6)}"
        )
    return lines


def _of_log(watchdog: tuple[WatchdogTimeout, ...], *, world: int | None) -> Finding:
    """Report what the job's log alone supports: who waited, not who was missing. world: ranks of the job, or None."""
    first, *others = _calls(watchdog).values()
    reported = {timeout.rank for timeout in watchdog if timeout.rank is not None}
    complete = all(timeout.rank is not None for timeout in watchdog)
    silent = sorted(set(range(world or max(reported, default=0))) - reported) if complete else []
    missing = (
        f"the log has no timeout of {_ranks(silent)}: look there first (never entered the call, exited before, or its "
        "output is elsewhere)"
    )
    return finding(
        first,
        others[:_MOST_CALLS],
        bool(silent) and missing,
        not others and not silent and "the NCCL watchdog reports it in the log",
        severity="problem",
        confidence="certain that these ranks waited; the log does not prove which rank was missing",
        advice=[
            advise(
                "find the rank that never entered: collect the flight recorders of all ranks",
                "export TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            )
        ],
        priority="failure",
    )


RULE = Rule(
    symptom="ranks wait in a collective that other ranks never enter or never leave",
    sees=("flight", "flight_recorded", "watchdog", "cells"),
    look=check,
    looks_at="flight recorders",
    protocol=3,
    thresholds={"waiting": MOST_WAITING},
)
