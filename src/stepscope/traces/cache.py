"""Loaded traces kept on disk as columns, so that a second look at a large trace starts at once. Off by default.

One file per trace: 8 magic bytes, the length of a msgpack header, the header, the columns as they lie in memory.
An entry counts only while the trace's path, size and modification time, the shape of ``Events`` and the checksum
of its own bytes all agree; anything else is read again and replaced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np

from stepscope.core.places import cache_dir
from stepscope.records.trace_quality import QualityFact
from stepscope.traces.events import Events, MemoryInstants, Note, RankTrace, TraceMeta

SCHEMA = 1
"""Raise it when a column's meaning changes; a column that comes or goes is noticed without."""

LIMIT_BYTES = 8 << 30
"""What the cache may hold; the entries not used for longest go first."""

_MAGIC = b"stepscop"
_ENDING = ".columns"
_LENGTH_BYTES = 8

_HINTS = get_type_hints(Events)
_COLUMNS = ("ts_ns", "dur_ns", "category", "name", "thread", "stream", "device", "correlation", "external_id",
            "sequence", "forward_thread", "shape")  # fmt: skip
_MEMORY = tuple(f.name for f in fields(MemoryInstants))
_REST = tuple(f.name for f in fields(Events) if f.name not in (*_COLUMNS, "memory"))
_Rest = msgspec.defstruct("_Rest", [(name, _HINTS[name]) for name in _REST])
_SHAPE_OF_EVENTS = (
    f"{SCHEMA} {np.little_endian} {_HINTS} {_MEMORY} {get_type_hints(TraceMeta)} {get_type_hints(QualityFact)}"
)


class _Column(msgspec.Struct):
    name: str
    dtype: str
    bytes: int


class _Header(msgspec.Struct):
    schema: str
    path: str
    size_bytes: int
    modified_ns: int
    rank: int
    partial: bool
    meta: TraceMeta
    notes: tuple[Note, ...]
    quality: tuple[QualityFact, ...]
    columns: list[_Column]
    rest: msgspec.Raw
    checksum: int  # of the columns


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/stepscope/traces``, else below ``~/.cache``."""
    return cache_dir(environ) / "traces"


def cached(
    path: Path,
    load: Callable[[], RankTrace],
    *,
    device_only: bool = False,
    folder: Path | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> RankTrace:
    """Return the trace of this file from the cache, else from ``load``, and keep it there for the next time.

    A cache that cannot be written is no error: the trace then carries a note. A complete entry serves
    ``device_only`` too. Raises what ``load`` raises.
    """
    place = cache_folder() if folder is None else folder
    try:
        state = path.stat()
    except OSError:
        return load()  # which says what is wrong
    for part in (False, True) if device_only else (False,):
        stored = _cached_trace(place / _entry_name(path, device_only=part), path, state)
        if stored is not None:
            return stored
    trace = load()
    try:
        place.mkdir(parents=True, exist_ok=True)
        _write_entry(place / _entry_name(path, device_only=trace.partial), trace, state)
        _prune_folder(place, limit_bytes)
    except OSError as error:
        text = f"not kept in the cache: {error.strerror or error}"
        return replace(trace, notes=(*trace.notes, Note(kind="skipped", text=text)))
    return trace


def _entry_name(path: Path, *, device_only: bool) -> str:
    digest = hashlib.blake2b(str(path.resolve()).encode(errors="surrogateescape"), digest_size=16)
    return f"{digest.hexdigest()}{'-device' if device_only else ''}{_ENDING}"


def _write_entry(entry: Path, trace: RankTrace, state: os.stat_result) -> None:
    """Write a trace's columns and a header into the entry; it takes its place only when everything was written."""
    arrays = {name: getattr(trace.events, name) for name in _COLUMNS}
    if trace.events.memory is not None:
        arrays |= {f"memory.{name}": getattr(trace.events.memory, name) for name in _MEMORY}
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    rest = _Rest(**{name: getattr(trace.events, name) for name in _REST})
    header = msgspec.msgpack.encode(
        _Header(
            schema=_SHAPE_OF_EVENTS,
            path=str(trace.path.resolve()),
            size_bytes=state.st_size,
            modified_ns=state.st_mtime_ns,
            rank=trace.rank,
            partial=trace.partial,
            meta=trace.meta,
            notes=trace.notes,
            quality=trace.quality,
            columns=[_Column(name, a.dtype.str, a.nbytes) for name, a in arrays.items()],
            rest=msgspec.Raw(msgspec.msgpack.encode(rest)),
            checksum=checksum,
        )
    )
    handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC)
            file.write(zlib.crc32(header).to_bytes(_LENGTH_BYTES, "little"))
            file.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
            file.write(header)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
        Path(temporary).replace(entry)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _cached_trace(entry: Path, path: Path, state: os.stat_result) -> RankTrace | None:
    """The trace that the entry holds; None when there is none, or it is stale or damaged."""
    try:
        with entry.open("rb") as file:
            start = file.read(len(_MAGIC) + 2 * _LENGTH_BYTES)
            checksum = int.from_bytes(start[8:16], "little")
            length = int.from_bytes(start[16:], "little")
            if not start.startswith(_MAGIC) or length > entry.stat().st_size:
                return None
            text = file.read(length)
            if zlib.crc32(text) != checksum:
                return None
            header = msgspec.msgpack.decode(text, type=_Header)
            stated = (header.schema, header.path, header.size_bytes, header.modified_ns)
            if stated != (_SHAPE_OF_EVENTS, str(path.resolve()), state.st_size, state.st_mtime_ns):
                return None
            body = bytearray(entry.stat().st_size - len(start) - length)
            file.readinto(body)
        if len(body) != sum(c.bytes for c in header.columns) or zlib.crc32(body) != header.checksum:
            return None
        rest = msgspec.msgpack.decode(header.rest, type=_Rest)
    except (OSError, msgspec.DecodeError, OverflowError):
        return None
    with suppress(OSError):
        os.utime(entry)  # for _prune_folder: it was used
    arrays: dict[str, Any] = {}
    offset = 0
    for column in header.columns:
        dtype = np.dtype(column.dtype)
        count = column.bytes // dtype.itemsize
        arrays[column.name] = np.frombuffer(body, dtype=dtype, count=count, offset=offset)
        offset += column.bytes
    memory = {name: arrays.pop(f"memory.{name}") for name in _MEMORY if f"memory.{name}" in arrays}
    return RankTrace(
        rank=header.rank,
        path=path,
        size_bytes=header.size_bytes,
        events=Events(
            **arrays,
            **{name: getattr(rest, name) for name in _REST},
            memory=MemoryInstants(**memory) if memory else None,
        ),
        meta=header.meta,
        notes=header.notes,
        quality=header.quality,
        partial=header.partial,
    )


def _prune_folder(folder: Path, limit_bytes: int) -> None:
    """Remove what was not used for longest, until the rest fits; other processes may do the same."""
    entries = []
    for entry in folder.glob(f"*{_ENDING}"):
        with suppress(OSError):
            state = entry.stat()
            entries.append((state.st_mtime_ns, state.st_size, entry))
    total_bytes = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries)[:-1]:
        if total_bytes <= limit_bytes:
            return
        entry.unlink(missing_ok=True)
        total_bytes -= size
