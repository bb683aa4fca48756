"""Step diaries that the hook left in the folder of a job, as columns."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.records.profile import (
    COLUMNS,
    FIRST_COLUMNS,
    NO_DELAY,
    NO_TIMED_STEP,
    RECORD,
    SAMPLE,
    SAMPLE_COLUMNS,
    DiaryEvent,
    DiaryHeader,
    RankEnd,
    RankGroups,
)
from stepscope.store.hardware import SAMPLES_AT_MOST, HardwareSamples, read_hardware
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import HEADER_AT_MOST, records_at_end

Numbers = NDArray[np.float64]


def dtype_of(columns: Sequence[str]) -> np.dtype[np.void]:
    """Return the dtype of a record with these columns."""
    return np.dtype([*((name, "<f4") for name in columns), ("delay", "<u2"), ("micro_steps", "u1"), ("flags", "u1")])


DTYPE = dtype_of(COLUMNS)
"""The dtype of the records that the hook writes now."""

SAMPLE_DTYPE = np.dtype(list(zip(SAMPLE_COLUMNS, ("<f8", "<u4", *["<f4"] * 6), strict=True)))
assert struct.calcsize(SAMPLE) == SAMPLE_DTYPE.itemsize


HEADER_USUALLY = 2 << 10

EVENTS_AT_MOST = 1 << 14
"""Bytes of the last events of a process whose last steps alone are read."""

GROUPS_OF = 64
"""Number of first ranks whose waits by group are read where the last steps alone are read."""

HARDWARE_SAMPLES, HARDWARE_AT_LEAST = 400_000, 128
"""Samples of all GPUs together, where the last steps of each are read; of each GPU at least (two minutes)."""


@record
class RankDiary:
    """One process. columns: name -> [steps] ns, NaN where not seen. delay: share of the whole, NaN where not known.

    end: None where the process left none: it runs, was killed, or called os._exit. first: earlier steps, which were not
    read, nor were their events. made: steps of the process, with those. samples: of its memory, the last ones. devices,
    load: likewise of its GPUs and processors; None: it has none, or an older stepscope wrote it. groups: whom it waited for;
    None: for nobody, an older stepscope wrote it, or it was not read.
    """

    header: DiaryHeader
    columns: Mapping[str, Numbers]
    delay: Numbers
    micro_steps: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    events: tuple[DiaryEvent, ...]
    end: RankEnd | None
    first: int
    made: int
    samples: Mapping[str, Numbers]
    devices: HardwareSamples | None = None
    load: HardwareSamples | None = None
    groups: RankGroups | None = None

    @property
    def rank(self) -> int:
        return self.header.rank

    @property
    def steps(self) -> int:
        """Number of steps that were read."""
        return int(self.flags.size)

    def between(self, first: int, end: int) -> RankDiary:
        """Return the diary without steps up to ``first`` and beyond ``end``; all events stay."""
        kept = slice(first - self.first, end - self.first)
        return replace(
            self,
            columns={name: values[kept] for name, values in self.columns.items()},
            delay=self.delay[kept],
            micro_steps=self.micro_steps[kept],
            flags=self.flags[kept],
            first=first,
        )

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


def read_diaries(layout: ProfileLayout, *, last: int | None = None) -> tuple[RankDiary, ...]:
    """Read every diary of the job, by rank, then in order of time. Raises DataError for one of another format.

    last: read no more than so many steps of each process, up to the last step that all ranks' last processes have, and
    what some have beyond it.
    """
    diaries = [diary for path in layout.diaries() if (diary := _Begun.of(path)) is not None]
    diaries.sort(key=lambda diary: (diary.header.rank, diary.header.start_unix_ns))
    if last is None:
        return tuple(diary.read(0, diary.made) for diary in diaries)
    newest = {diary.header.rank: diary for diary in diaries if diary.made}
    common = min((diary.made for diary in newest.values()), default=0)
    hardware = max(HARDWARE_AT_LEAST, min(SAMPLES_AT_MOST, HARDWARE_SAMPLES // max(1, len(diaries))))
    here = frozenset(path.name for path in layout.control.glob("*"))
    read = []
    for diary in diaries:
        end = min(diary.made, common + last) if newest.get(diary.header.rank) is diary else diary.made
        read.append(diary.read(max(0, min(end, common) - last), end, here=here, hardware=hardware))
    return tuple(read)


def whole_steps(layout: ProfileLayout, rank: int) -> tuple[tuple[int, Numbers], ...]:
    """Return, for each process of a rank in order of time, the wall clock at its first step's begin, and ns of all steps."""
    diaries = [diary for path in layout.diaries(rank) if (diary := _Begun.of(path)) is not None and diary.made]
    diaries.sort(key=lambda diary: diary.header.start_unix_ns)
    return tuple(
        (
            diary.header.start_unix_ns,
            np.memmap(diary.path, diary.dtype, "r", diary.offset, diary.made)["whole_ns"].astype(float),
        )
        for diary in diaries
    )


def read_diary(path: Path) -> RankDiary | None:
    """Read one diary with its events and end; None where it has no whole header. A record cut short is left out."""
    begun = _Begun.of(path)
    return None if begun is None else begun.read(0, begun.made)


@record
class _Begun:
    """A diary of which the header was read. dtype: of a record; offset: of the first one. made: whole records."""

    path: Path
    header: DiaryHeader
    dtype: np.dtype[np.void]
    offset: int
    made: int

    @classmethod
    def of(cls, path: Path) -> _Begun | None:
        """Return the header and layout of a diary; None where its first line is not whole."""
        with path.open("rb", buffering=0) as file:
            head, newline, _ = file.read(HEADER_USUALLY).partition(b"\n")
            if not newline:
                file.seek(0)
                head, newline, _ = file.read(HEADER_AT_MOST).partition(b"\n")
            size = os.fstat(file.fileno()).st_size
        if not newline:
            return None
        header = _decoded_record(path, head, DiaryHeader)
        named = set(header.columns)
        whole = named.issuperset(FIRST_COLUMNS) and len(named) == len(header.columns)
        if not whole or header.record != RECORD.format(len(named)):
            why = f"its records are {header.record!r} of {', '.join(header.columns)}"
            raise DataError(f"{path}: a diary of another format", why=why)
        offset, dtype = len(head) + 1, dtype_of(header.columns)
        return cls(
            path=path, header=header, dtype=dtype, offset=offset, made=max(0, size - offset) // dtype.itemsize
        )  # fmt: skip

    def read(
        self, first: int, end: int, *, here: frozenset[str] | None = None, hardware: int = SAMPLES_AT_MOST
    ) -> RankDiary:
        """Read steps from ``first`` on. here: names of the folder's files, where known. hardware: samples of it to read."""
        with self.path.open("rb", buffering=0) as file:
            size = self.dtype.itemsize
            body = os.pread(file.fileno(), (end - first) * size, self.offset + first * size)
        rows = np.frombuffer(body, dtype=self.dtype, count=len(body) // size)
        columns = {name: rows[name].astype(np.float64) for name in COLUMNS if name in self.header.columns}
        delay = np.where(rows["delay"] == NO_DELAY, np.nan, rows["delay"] / (NO_DELAY - 1.0))
        events, ended = ProfileLayout.events_of(self.path), ProfileLayout.end_of(self.path)
        samples, devices = ProfileLayout.samples_of(self.path), ProfileLayout.devices_of(self.path)
        groups, load = ProfileLayout.groups_of(self.path), ProfileLayout.load_of(self.path)
        return RankDiary(
            header=self.header,
            columns={name: columns.get(name, np.full(rows.size, np.nan)) for name in COLUMNS},
            delay=delay,
            micro_steps=rows["micro_steps"],
            flags=rows["flags"],
            events=_diary_events(events, first) if here is None or events.name in here else (),
            end=_rank_end(ended) if here is None or ended.name in here else None,
            first=first,
            made=self.made,
            samples=_sample_columns(samples) if here is None or samples.name in here else _NONE,
            groups=_rank_groups(groups)
            if here is None or (groups.name in here and self.header.rank < GROUPS_OF)
            else None,
            devices=read_hardware(devices, last=hardware) if here is None or devices.name in here else None,
            load=read_hardware(load, last=hardware) if here is None or load.name in here else None,
        )


_NONE: Mapping[str, Numbers] = {name: np.empty(0) for name in SAMPLE_COLUMNS}


def _sample_columns(path: Path) -> Mapping[str, Numbers]:
    """Read the last samples by column; a record cut short is left out."""
    if not path.is_file():
        return _NONE
    rows = np.frombuffer(records_at_end(path, 0, SAMPLE_DTYPE.itemsize, SAMPLES_AT_MOST), dtype=SAMPLE_DTYPE)
    return {name: rows[name].astype(np.float64) for name in SAMPLE_COLUMNS}


def _diary_events(path: Path, first: int) -> tuple[DiaryEvent, ...]:
    """Read the events of steps beyond ``first``; unless that is the beginning, the last ones of a long file alone."""
    if not path.is_file():
        return ()
    with path.open("rb", buffering=0) as file:
        skipped = max(0, os.fstat(file.fileno()).st_size - EVENTS_AT_MOST) if first else 0
        lines: Sequence[bytes] = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, skipped).split(b"\n")[
            bool(skipped) : -1
        ]
    events = (_decoded_record(path, line, DiaryEvent) for line in lines)
    return tuple(event for event in events if event.step > first)


def _rank_end(path: Path) -> RankEnd | None:
    return _decoded_record(path, path.read_bytes(), RankEnd) if path.is_file() else None


def _rank_groups(path: Path) -> RankGroups | None:
    return _decoded_record(path, path.read_bytes(), RankGroups) if path.is_file() else None


def _decoded_record(path: Path, text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not a part of a step diary", why=str(error)) from error
