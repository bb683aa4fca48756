"""The job hangs: which collective the ranks wait in, and which ranks never entered it or never leave it.

What
----
Compares the flight recorders of all ranks. Each cause is a finding with the ranks' numbers: a rank that never called a
collective in which others wait, a rank inside a collective that others have left, a collective that all ranks entered
and none leaves, a rank without a dump. Waits that follow from a cause are counted, not repeated. `collective-mismatch`
reports ranks that called *different* collectives, `hang-in-log` what a log says without dumps.

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

from stepscope.core.words import counted, in_words, plural
from stepscope.diagnose.rule import Advices, Finding, Rule, Statement, finding, skipped
from stepscope.records.nccl import MISMATCHES, FlightFinding
from stepscope.results.evidence import Evidence
from stepscope.results.text_hang import text_hang_of

_INTERRUPTED = (
    "the run was interrupted: the calls that its ranks were in at that moment do not show a hang; a cell that hangs "
    "ends at its deadline (--set measure.timeout_s=SECONDS)"
)


def check(evidence: Evidence) -> Statement:
    """Look for: ranks wait in a collective that other ranks never enter or never leave."""
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
            findings.append(_hang_finding(cause, evidence))
        named.update(cause.ranks if cause.cause else ())
    what = "ranks called different things" if len(waits) < len(evidence.flight) else "no single cause"
    return findings or f"{counted(len(evidence.flight), 'difference')} between ranks: {what}"


def _ranks_text(ranks: Iterable[int]) -> str:
    numbers = tuple(ranks)
    return f"{plural(len(numbers), 'rank')} {in_words(numbers)}"


def _hang_finding(cause: FlightFinding, evidence: Evidence) -> Finding:
    """Return the finding, with evidence, stake and advice: ranks wait in a collective that other ranks never enter or
    never leave."""
    others = sum(not f.cause for f in evidence.flight)
    follow = "follow" if others > 1 else "follows"
    who, one = _ranks_text(cause.ranks), len(cause.ranks) == 1
    group = cause.group_description or (f"group {cause.group}" if cause.group else "")
    of = f"{f' of {group}' if group else ''}: {cause.expected or 'a collective'}"
    text = text_hang_of(evidence.signs)
    call = f"collective{'' if cause.sequence is None else f' {cause.sequence}'}"
    advice: list[Advices] = [
        (f"see what {who} {'does' if one else 'do'} instead", "py-spy dump --native --pid PID"),
        "usual reasons: a swallowed exception, a branch that depends on the rank, uneven data (one rank has "
        "an extra batch), checkpoint or evaluation on one rank only, a slow or full disk",
        ("record more calls next time", "export TORCH_FR_BUFFER_SIZE=20000"),
    ]
    if not cause.ranks:
        title = f"all ranks hang in {call}{of}"
        advice = [
            "every rank is in the collective: look for network and device errors on all hosts (kernel log, "
            "link counters)",
            ("if the backend is NCCL, read its log", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET"),
        ]
    elif cause.kind == "stuck_inside":
        title = f"{who} {'is' if one else 'are'} stuck inside {call}{of}"
        advice = [
            (f"on the host of {who}: look for device errors", "dmesg | grep -i -E 'xid|nvrm|amdgpu'"),
            ("check whether a thread holds the interpreter lock", "py-spy dump --native --pid PID"),
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
            f"the log agrees: {_ranks_text(call.ranks)} timed out in {text.named(call)}"
            for call in text.calls
            if call.sequence == cause.sequence
        ],
        severity="problem",
        confidence="likely: a rank without a dump was killed or does not respond"
        if cause.kind == "incomplete_dump"
        else "certain at the time of the dump; in a job that continued, it only shows which rank was behind",
        advice=advice,
        priority="failure",
        of=who if cause.ranks else None,
    )


RULE = Rule(
    symptom="ranks wait in a collective that other ranks never enter or never leave",
    sees=("flight", "flight_recorded", "cells"),
    look=check,
    looks_at="flight recorders",
    decided_by="waiting: 0 ranks waiting for a call of another rank",
    protocol=3,
)
