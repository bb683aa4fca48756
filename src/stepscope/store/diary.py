"""Step diaries that the hook left in the folder of a job, as columns."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import DataError
from stepscope.records.profile import COLUMNS, NO_DELAY, NO_TIMED_STEP, RECORD, DiaryEvent, DiaryHeader, RankEnd
from stepscope.store.layout import ProfileLayout

Numbers = NDArray[np.float64]

DTYPE = np.dtype([*((name, "<f4") for name in COLUMNS), ("delay", "<u2"), ("micro_steps", "u1"), ("flags", "u1")])
assert DTYPE.itemsize == struct.calcsize(RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDiary:
    """One process. columns: name -> [steps] ns, NaN where not seen. delay: share of the whole, NaN where not known.

    end: None where the process left none: it runs, was killed, or called os._exit.
    """

    header: DiaryHeader
    columns: Mapping[str, Numbers]
    delay: Numbers
    micro_steps: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    events: tuple[DiaryEvent, ...]
    end: RankEnd | None

    @property
    def rank(self) -> int:
        return self.header.rank

    @property
    def steps(self) -> int:
        return int(self.flags.size)

    @property
    def whole_ns(self) -> Numbers:
        return self.columns["whole_ns"]

    @property
    def net_ns(self) -> Numbers:
        """[steps]: each step without what lies between steps."""
        return np.asarray(self.whole_ns - np.nan_to_num(self.columns["outside_ns"]))

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Steps whose time is that of the job by itself: neither profiled nor the first."""
        return np.asarray((self.flags & NO_TIMED_STEP) == 0)


def read_diaries(layout: ProfileLayout) -> tuple[RankDiary, ...]:
    """Every diary of the job, by rank, then in order of time. Raises DataError for one of another format."""
    found = [read_diary(path) for path in layout.diaries()]
    return tuple(sorted((each for each in found if each is not None), key=lambda d: (d.rank, d.header.start_unix_ns)))


def read_diary(path: Path) -> RankDiary | None:
    """One diary with its events and end; None where not even its header was written. A record cut short is left out."""
    data = path.read_bytes()
    head, newline, body = data.partition(b"\n")
    if not newline:
        return None
    header = _decoded(path, head, DiaryHeader)
    if header.record != RECORD or header.columns != COLUMNS:
        raise DataError(f"{path}: a diary of another format", why=f"its records are {header.record!r}")
    rows = np.frombuffer(body, dtype=DTYPE, count=len(body) // DTYPE.itemsize)
    delay = np.where(rows["delay"] == NO_DELAY, np.nan, rows["delay"] / (NO_DELAY - 1.0))
    return RankDiary(
        header=header,
        columns={name: rows[name].astype(np.float64) for name in COLUMNS},
        delay=delay,
        micro_steps=rows["micro_steps"],
        flags=rows["flags"],
        events=_events(ProfileLayout.events_of(path)),
        end=_end(ProfileLayout.end_of(path)),
    )


def _events(path: Path) -> tuple[DiaryEvent, ...]:
    lines: Sequence[bytes] = path.read_bytes().split(b"\n")[:-1] if path.is_file() else ()
    return tuple(_decoded(path, line, DiaryEvent) for line in lines)


def _end(path: Path) -> RankEnd | None:
    return _decoded(path, path.read_bytes(), RankEnd) if path.is_file() else None


def _decoded(path: Path, text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not a part of a step diary", why=str(error)) from error
