"""The evidence of a cell whose worker group broke, from what ranks and torchrun left in its folder, and its status."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_duration
from stepscope.records.cell import CellStatus
from stepscope.records.nccl import MISMATCHES
from stepscope.records.nouns import Status
from stepscope.records.profile import Deadline, End
from stepscope.records.samples import Heartbeat, RankError
from stepscope.results.ends.evidence import EndEvidence, Fate, Launcher, RankCalls, Sort, differed, error_text
from stepscope.store.layout import CellLayout
from stepscope.store.writer import write_record
from stepscope.traces.flight import cell_findings, culprits, summary

_FAILURE_BLOCK = re.compile(
    r"rank\s*:\s*(?P<rank>\d+)\s*\(local_rank:\s*\d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+)", re.MULTILINE
)
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a rank that somebody stopped."""
_SORTS: Mapping[str, Sort] = {
    "oom": "oom", "host_oom": "host_oom", "victim": "victim", "error": "failed", "usage": "failed", "terminated": "stopped",
}  # fmt: skip


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


def leave_word(path: Path, error: StepscopeError, why: str, **more: Any) -> None:
    """Leave word of an error in a rank's name, rank 0's if not another's in ``more``: no rank can say it itself."""
    word = RankError(
        rank=0,
        host=os.uname().nodename,
        pid=os.getpid(),
        cell_id=None,
        phase="start",
        step=0,
        kind="usage",
        exception=f"{type(error).__name__}: {why}",
        traceback="",
        fix=error.fix,
        time_ns=time.time_ns(),
    )
    write_record(path, replace(word, **more))


def calls_in(cell: CellLayout, world_size: int) -> RankCalls | None:
    """Return what all dumps in the cell's folder say, or None when there is none or they show nothing."""
    findings = cell_findings(cell, world_size)
    sentence = summary(findings)
    if sentence is None:
        return None
    silent = [f.sentence for f in findings if f.kind == "incomplete_dump" and not f.cause]
    return RankCalls(
        hung="; ".join([sentence, *silent]),
        differed=summary(f for f in findings if f.kind in MISMATCHES),
        rank=next(iter(culprits(findings)), None),
    )


def cell_evidence(
    *,
    errors: Sequence[RankError],
    heartbeats: Sequence[Heartbeat],
    codes: Mapping[int, int],
    finished: frozenset[int],
    world_size: int,
    deadline: Deadline | None = None,
    seen_first: int | None = None,
    last_words: Mapping[int, str] = MappingProxyType({}),
    calls: RankCalls | None = None,
) -> EndEvidence:
    """Return the evidence of the cell that was running when its group ended.

    errors: error files of this cell (or of start-up); heartbeats: last one of each rank that wrote any;
    codes: from :func:`exit_codes`; finished: ranks whose final summary of this cell exists; seen_first: :func:`first_seen`;
    deadline: set when that is what ended the group; last_words: the last line each rank wrote to stderr.
    calls: what the flight recorders say that ranks left behind.
    """
    beats = {beat.rank: beat for beat in heartbeats}
    if deadline is not None:
        codes = {}  # by the controller's own signal
    spoke = {error.rank for error in errors}
    evidence = EndEvidence(
        fates=(), world_size=world_size, code=1, launcher=Launcher(noticed=seen_first), beats=beats, finished=finished,
        deadline=deadline, calls=calls,
    )  # fmt: skip
    fates = [_fate_of_error(error, codes.get(error.rank)) for error in errors]
    for rank in range(world_size):
        if rank not in spoke:
            fates.append(_without_error(rank, codes.get(rank) or None, evidence, last_words.get(rank)))
    return replace(evidence, fates=fates)


def _fate_of_error(error: RankError, code: int | None) -> Fate:
    """Return the fate of a rank by the error that it wrote."""
    exception, colon, message = error.exception.partition(": ")
    return Fate(
        rank=error.rank,
        process=(error.host, error.pid),
        sort=_SORTS[error.kind],
        at_ns=math.inf if error.kind == "terminated" else error.time_ns,  # whoever sent it was late
        code=code,
        exception=exception,
        message=message if colon else None,
        phase=error.phase,
        step=error.step,
    )


def _without_error(rank: int, code: int | None, evidence: EndEvidence, last_words: str | None) -> Fate:
    """Return the fate of a rank that left no error file: without a summary it was not through."""
    beat, facts = (evidence.beats or {}).get(rank), differed(evidence)
    if not facts and last_words and code != -signal.SIGKILL:  # differing calls say more than the library's last words
        facts = (f"its last line: {last_words}",)
    silent = rank not in evidence.finished
    return Fate(
        rank=rank,
        process=("" if beat is None else beat.host, 0),
        sort="stopped" if code in _TERMINATED else "failed" if code is not None and silent else "fine",
        code=code,
        phase=None if beat is None else beat.phase,
        step=None if beat is None else beat.step,
        silent=silent,
        facts=facts,
    )


def cell_status(end: End, cell_id: str) -> CellStatus:
    """Return the status of a cell that ended so: reason, failing rank and host."""
    return CellStatus(
        cell_id=cell_id,
        status=_end_status(end),
        phase=end.phase,
        reason="; ".join((_end_text(end), *end.facts)),
        failing_rank=end.ranks[0] if end.ranks else None,
        failing_host=end.host,
        exception=error_text(end),
    )


def _end_status(end: End) -> Status:
    """Return what a cell's end is called."""
    if end.kind == "out-of-memory":
        return "host_oom" if end.of_host else "oom"
    if end.kind in ("hang", "timeout"):
        return "timeout"
    by_signal = not end.ranks or end.rank_code is None or end.rank_code < 0
    return "killed" if end.exception is None and by_signal else "error"


def _end_text(end: End) -> str:
    """Say in one sentence how the cell ended."""
    step = f"{end.phase}, step {end.step}"
    deadline = "" if end.deadline is None else format_duration(end.deadline.timeout_ns)
    if end.kind == "timeout":
        of_all = "" if end.deadline is None or end.deadline.total_steps is None else f" of {end.deadline.total_steps}"
        return (
            f"still progressing at the deadline of {deadline} ({step}{of_all}): raise measure.timeout_s "
            "(--set measure.timeout_s=SECONDS)"
        )
    seen = "" if end.step is None else f" (last seen in {step})"
    if not end.ranks:
        ranks = "ranks" if len(end.victims) > 1 else "rank"
        who = f"{ranks} {', '.join(map(str, sorted(end.victims)))}" if end.victims else "the ranks"
        return (
            f"SIGTERM from outside ended {who}{seen}: a scheduler, a user or the launcher sent it, and no rank is known "
            "to have failed"
        )
    rank = f"rank {end.ranks[0]}"
    if end.kind in ("hang", "lost"):
        what = (
            f"the deadline of this cell ({deadline}) passed" if deadline else "ranks lost the connection to each other"
        )
        return f"{what}; {_behind_text(end, rank, step)}"
    if end.exception is not None:
        return f"{rank} on {end.host} in {step}: {error_text(end)}"
    if end.rank_code is None:
        return f"{rank} exited without an error message{seen}"
    if end.rank_code > 0:
        return f"{rank} exited with code {end.rank_code} without an exception{seen}"
    by_kernel = "; the kernel's out-of-memory killer does this: see `dmesg`" if end.signal == "SIGKILL" else ""
    return f"{rank} was killed by {end.signal}{seen}{by_kernel}"


def _behind_text(end: End, rank: str, step: str) -> str:
    """Say what a rank that held the others up did not do."""
    if end.hang is None:
        return f"{rank} never reached this cell"
    if end.hang.said is not None:
        return f"{end.hang.said} ({rank} on {end.host}: {step})"
    missed = [f": it never called {call}, in which rank {waits} waits" for waits, call in end.hang.parts]
    return f"{rank} on {end.host} stopped first, in {step}{''.join(missed)}"
