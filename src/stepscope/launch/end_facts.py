"""What a job's ranks, launchers and processes left in its folder, put together for the judgement of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stepscope.core.errors import DataError
from stepscope.launch.job_end import DiaryFacts
from stepscope.records.job_end import FailedProcess
from stepscope.records.profile import HookedProcess, WindowOfRank
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

T = TypeVar("T")


def diary_facts(layout: ProfileLayout) -> tuple[DiaryFacts, ...]:
    """Of every process that left a diary; one that cannot be read is left out."""
    paths = layout.diaries()
    return tuple(each for each in _readable(paths, _diary_facts) if each is not None) if paths else ()


def _diary_facts(path: Path) -> DiaryFacts | None:
    import numpy as np

    from stepscope.records.diary import PROFILED
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


def failures(layout: ProfileLayout) -> tuple[FailedProcess, ...]:
    return _records(layout.failures(), FailedProcess)


def processes(layout: ProfileLayout) -> tuple[HookedProcess, ...]:
    return _records(layout.processes(), HookedProcess)


def windows(layout: ProfileLayout, number: int) -> tuple[WindowOfRank, ...]:
    return _records(layout.window_ranks(number), WindowOfRank)


def _records(paths: Sequence[Path], kind: type[T]) -> tuple[T, ...]:
    return tuple(_readable(paths, lambda path: read_record(path, kind)))


def _readable(paths: Iterable[Path], read: Callable[[Path], T]) -> list[T]:
    """Of a job that was killed, or ran onto a full disk, what can be read."""
    found = []
    for path in paths:
        with suppress(DataError, OSError):  # the job may have removed its folder
            found.append(read(path))
    return found
