"""Logs of several jobs in one folder: which file is of which, where the files prove that there are several. Pure.

Proof is what one job cannot say of itself: two world sizes, two attempts of torchrun, one rank that gives up waiting twice,
hours apart. Files that nothing tells apart are of one job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from stepscope.core.dataclass import record
from stepscope.core.places import telling_names
from stepscope.core.words import grouped
from stepscope.records.imported import Sign
from stepscope.results.ends.text import time_ns

APART_NS = 3600e9
"""Between two waits of one rank: whoever gives up waiting ends, and waits of one job end within minutes of each other."""

_WAITED = ("timeout", "group-status")
_WORLD = re.compile(r"world|MEMBER", re.IGNORECASE)
_ATTEMPT = re.compile(r"(?:^|/)(attempt_\d+)(?=/)")


@record
class TextJob:
    """One of several jobs. name: of its files, or of their folder. proof: what tells it from the others. signs: its own."""

    name: str
    proof: str
    signs: tuple[Sign, ...]


@record
class _File:
    source: str
    world: int | None
    attempt: str | None
    gave_up: Mapping[int, float]
    signs: tuple[Sign, ...]

    def differs(self, other: _File) -> str:
        """Why two files cannot be of one job; empty where nothing says so."""
        if None not in (self.world, other.world) and self.world != other.world:
            return f"{self.world} ranks"
        if None not in (self.attempt, other.attempt) and self.attempt != other.attempt:
            return f"{self.attempt} of torchrun"
        for rank, at_ns in self.gave_up.items():
            if abs(other.gave_up.get(rank, at_ns) - at_ns) > APART_NS:
                return f"rank {rank} gave up waiting hours before or after that of another"
        return ""


class _Files:
    """Files, and what is known of all of them."""

    def __init__(self, files: Iterable[_File] = ()) -> None:
        self.files: list[_File] = []
        self._worlds: set[int | None] = {None}
        self._attempts: set[str | None] = {None}
        self._gave_up: dict[int, tuple[float, float]] = {}
        self._folders: set[PurePath] = set()
        for file in files:
            self.add(file)

    def add(self, file: _File) -> None:
        self.files.append(file)
        self._worlds.add(file.world)
        self._attempts.add(file.attempt)
        self._folders.update(PurePath(file.source).parents)
        for rank, at_ns in file.gave_up.items():
            first, last = self._gave_up.get(rank, (at_ns, at_ns))
            self._gave_up[rank] = min(first, at_ns), max(last, at_ns)

    def differ(self, file: _File) -> bool:
        """Whether one of them differs from a file."""
        return (
            (file.world is not None and not self._worlds <= {None, file.world})
            or (file.attempt is not None and not self._attempts <= {None, file.attempt})
            or any(
                max(at_ns - self._gave_up[rank][0], self._gave_up[rank][1] - at_ns) > APART_NS
                for rank, at_ns in file.gave_up.items()
                if rank in self._gave_up
            )
        )

    def nearness(self, file: _File) -> int:
        """How many folders of its path a file has in common with the nearest."""
        return sum(folder in self._folders for folder in PurePath(file.source).parents)


def text_jobs(signs: Iterable[Sign]) -> tuple[TextJob, ...]:
    """Return the jobs whose files prove that they are several; empty where they may all be of one.

    A file that may be of two of them is of the one whose files lie nearest in the folders, else alone.
    """
    files = [_log_file(source, of_file) for source, of_file in grouped(signs, lambda sign: sign.source).items()]
    every = _Files(files)
    if not any(map(every.differ, files)):
        return ()
    jobs: list[_Files] = []
    for file in sorted(files, key=lambda file: not every.differ(file)):
        near = [(job.nearness(file), job) for job in jobs if not job.differ(file)]
        best = [job for shared, job in near if shared == max(near, key=lambda item: item[0])[0]]
        if len(best) == 1:
            best[0].add(file)
        else:
            jobs.append(_Files([file]))
    names = telling_names([Path(job.files[0].source) for job in jobs])
    return tuple(
        TextJob(
            name=f"{name} and {len(job) - 1} more" if job[1:] else name,
            proof=next((why for other in files if (why := job[0].differs(other))), ""),
            signs=tuple(sign for file in job for sign in file.signs),
        )
        for name, job in zip(names, (one.files for one in jobs), strict=True)
    )


def _log_file(source: str, signs: list[Sign]) -> _File:
    worlds = {int(s.values["world"]) for s in signs if s.kind == "world" and _WORLD.search(s.text)}
    attempt = _ATTEMPT.search(source)
    timed = ((int(s.rank), time_ns(s.time)) for s in signs if s.kind in _WAITED and s.rank is not None)
    return _File(
        source=source,
        world=worlds.pop() if len(worlds) == 1 else None,
        attempt=None if attempt is None else attempt[1],
        gave_up={rank: at_ns for rank, at_ns in timed if not math.isinf(at_ns)},
        signs=tuple(signs),
    )
