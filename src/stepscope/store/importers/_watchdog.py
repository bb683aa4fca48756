"""Collectives that ran into their timeout, as torch's NCCL watchdog reports them in any job's output.

The lines are those of ``ProcessGroupNCCL::WorkNCCL::checkTimeout`` (torch 2.0 to 2.9): the global rank stands in the prefix
``[rank5]:``, which torch writes since 2.2; ``[Rank 5]`` behind the file name is the rank within the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import LeftOut
from stepscope.records.nccl import WatchdogTimeout
from stepscope.store.importer import Candidate
from stepscope.store.importers._log_lines import SUFFIXES, LogLines

MARK = b"caught collective operation timeout"
END_BYTES = 1 << 20
"""At the end of a log: the watchdog ends the job, and what follows are stacks of each rank."""

_TIMEOUT = re.compile(
    rb"\[Rank (?P<member>\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), "
    rb"OpType=(?P<op>\w{1,60})(?:, NumelIn=(?P<numel>\d{1,18}), NumelOut=\d{1,18})?, Timeout\(ms\)=(?P<timeout>\d{1,15})\)"
)
_GLOBAL = re.compile(rb"\[rank(\d{1,7})\]:")
_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
}  # fmt: skip


def reports(candidate: Candidate) -> bool:
    """Whether a timeout stands at the beginning or the end of the file."""
    if MARK in candidate.head:
        return True
    try:
        with candidate.path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - END_BYTES))
            return MARK in file.read(END_BYTES)
    except OSError:
        return False


def timeouts(path: Path) -> Iterator[WatchdogTimeout]:
    for _, line in LogLines(path):
        if MARK not in line:
            continue
        for found in _TIMEOUT.finditer(line):
            known = _GLOBAL.findall(line, 0, found.start())
            op = found["op"].decode()
            yield WatchdogTimeout(
                rank=int(known[-1]) if known else None,
                member=int(found["member"]),
                sequence=int(found["sequence"]),
                op=_OPS.get(op, op.strip("_").lower()),
                elements=None if found["numel"] is None else int(found["numel"]),
                timeout_ms=int(found["timeout"]),
                source=str(path),
            )


def timeouts_beside(source: Candidate, left_out: Iterable[LeftOut]) -> tuple[WatchdogTimeout, ...]:
    """What the watchdog reports in logs that are read for something else; a log that cannot be read reports nothing."""
    found: dict[WatchdogTimeout, None] = {}
    unread = {each.path for each in left_out}
    for file in (each for each in source.files if str(each) not in unread):
        if file.suffix.lower() in SUFFIXES and reports(Candidate(file)):
            try:
                found |= dict.fromkeys(timeouts(file))
            except (DataError, OSError):
                continue
    return tuple(found)
