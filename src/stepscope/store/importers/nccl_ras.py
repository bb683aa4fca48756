"""What NCCL's RAS answers as JSON (``ncclras -f json``, NCCL 2.28 on), in the signs that its text is read into.

Ranks are those of a communicator. Of several answers in one file the last counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import Imported, Sign
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.reader import read_bytes

_SUFFIXES = (".json", ".txt", ".log", ".out", "")
_FINE = (0, 7)
"""Results of NCCL that are no error: success, and in progress."""


@dataclass
class _Rank:
    rank: int
    host: str = "unknown"
    pid: int = -1
    cuda_dev: int = -1
    status: dict[str, Any] = field(default_factory=dict)
    collective_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class _Communicator:
    hash: str
    size: int
    ranks: list[_Rank] = field(default_factory=list)
    missing_ranks: list[_Rank] = field(default_factory=list)


@dataclass
class _Answer:
    communicators: list[_Communicator]
    timestamp: str | None = None


def _last_answer(path: Path) -> _Answer:
    """Return the last answer of a file. Raises DataError for a damaged one."""
    text, last, at = read_bytes(path).decode(errors="replace"), None, 0
    try:
        while (at := text.find("{", at)) >= 0:
            last, at = json.JSONDecoder().raw_decode(text, at)
        return msgspec.convert(last, _Answer)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: a damaged answer of ncclras", why=str(error), fix="run ncclras -f json again"
        ) from error


def _ras_signs(path: Path) -> tuple[Sign, ...]:
    """Return the signs of the last answer: of each communicator its size, and of its members who is gone, behind or in
    error."""
    answer = _last_answer(path)
    communicators = sorted(answer.communicators, key=lambda one: -one.size)
    job = communicators[0] if len({one.size for one in communicators[:2]}) == len(communicators[:2]) > 0 else None
    """The communicator whose ranks are the job's: the only largest."""

    def sign(kind: str, one: _Communicator, member: _Rank | None = None, /, **values: object) -> Sign:
        """Make the sign of a communicator, or of its member; a process has a rank where that is the job's."""
        return Sign(
            kind=kind, source=str(path), line=1, time=answer.timestamp, host=member.host if member else None,
            text=f"communicator {one.hash}" + (f", rank {member.rank}" if member else ""),
            rank=member.rank if member and (one is job or "process" not in values) else None,
            values={name: str(value) for name, value in values.items()},
        )  # fmt: skip

    def of_communicator(one: _Communicator) -> Iterator[Sign]:
        """Yield the signs of one communicator."""
        yield sign("ras-world" if one is job else "ras-answer", one, world=one.size)
        for member in one.missing_ranks:
            silent = {state: 1 for state in ("unresponsive", "considered_dead") if member.status.get(state)}
            if silent:
                yield sign("ras-gone", one, member, process=member.pid, gpu=member.cuda_dev, **silent)
            else:
                yield sign("ras-left", one, member, communicator=one.hash)
        for member in one.ranks:
            if (code := member.status.get("async_error", 0)) not in _FINE:
                yield sign("ras-error", one, member, process=member.pid, gpu=member.cuda_dev, code=code)
        for op in one.ranks[0].collective_counts if one.ranks else ():
            counts: dict[int, list[_Rank]] = {}
            for member in one.ranks:
                counts.setdefault(member.collective_counts.get(op, 0), []).append(member)
            if len(counts) > 1:
                yield sign("ras-counts", one, of=op, communicator=one.hash)
            for count, ranks in counts.items() if len(counts) > 1 else ():
                alone = ranks[0] if len(ranks) == 1 else None
                yield sign("ras-count", one, alone, ranks=len(ranks), count=count)
                yield from (sign("ras-rank", one, r) for r in ranks if alone is None and count == min(counts))

    signs: dict[object, Sign] = {}
    for number, statement in enumerate(part for one in communicators for part in of_communicator(one)):
        process = statement.values.get("process")
        signs.setdefault((statement.kind, statement.host, process) if process else number, statement)
    return tuple(signs.values())


def _read_answers(source: Candidate) -> Imported:
    """Read the signs of every answer; a remark where all ranks answered."""
    answers, left_out = read_each(source, _recognises_ras, _ras_signs, suffixes=_SUFFIXES)
    signs = tuple(s for answer in answers for s in answer)
    well = signs and {sign.kind for sign in signs} <= {"ras-world", "ras-answer"}
    return Imported(
        format="nccl_ras",
        path=str(source.path),
        signs=signs,
        notes=() if signs else ("ncclras names no communicator: none was open when it was asked",),
        remarks=(f"NCCL RAS: all ranks of {counted(len(signs), 'communicator')} answered, with equal counts",)
        if well
        else (),
        left_out=left_out,
    )


def _recognises_ras(candidate: Candidate) -> bool:
    return '"secondary_hash"' in candidate.text or '"communicators_count"' in candidate.text


IMPORTER = Importer(
    title="JSON of ncclras",
    recognises=_recognises_ras,
    read_files=_read_answers,
    rank=25,
    marks=("secondary_hash", "communicators_count"),
)
