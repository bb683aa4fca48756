"""Snapshots of the CUDA caching allocator (``torch.cuda.memory._dump_snapshot``): who holds what, peaks, fragments.

A pickle is read with an unpickler that knows no class and no function; a snapshot is made of plain values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.memory_snapshot import MemoryHolder, MemorySnapshot
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._memory_history import History, history_of
from stepscope.store.importers._plain_pickle import PROTOCOL_MARK, plain_values
from stepscope.store.reader import read_bytes

HOLDERS = 20
"""Places in the code that are kept, largest first."""

UNKNOWN_PLACE = "unknown place (allocated before the recorded history)"
_TORCH_ONLY = "inside torch (no Python frame)"
_LIVE = "active_allocated"
_FREE = "inactive"
_SIGNATURE_BYTES = 4096


Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Device = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
Moment = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]


@dataclass(kw_only=True)
class Block:
    size: Bytes
    state: str
    requested_size: Bytes | None = None
    address: int | None = None
    frames: list[Any] | None = None
    history: list[Any] | None = None


@dataclass(kw_only=True)
class _Segment:
    total_size: Bytes
    blocks: list[Block]
    device: Device = 0
    address: int = 0
    allocated_size: Bytes | None = None
    active_size: Bytes | None = None
    is_expandable: bool = False


@dataclass(kw_only=True)
class Event:
    action: str
    addr: int = 0
    size: Bytes = 0
    time_us: Moment | None = None
    device_free: Bytes | None = None
    frames: list[Any] | None = None


@dataclass(kw_only=True)
class _Snapshot:
    segments: list[_Segment]
    device_traces: list[list[Event]] = field(default_factory=list)
    allocator_settings: dict[str, Any] = field(default_factory=dict)


def read_snapshot(path: Path) -> tuple[MemorySnapshot, ...]:
    """One record for each device that has memory or a history. Raises DataError for what is no snapshot, is damaged, or
    holds code."""
    source = str(path)
    data = read_bytes(path)
    if data[:1] != PROTOCOL_MARK:
        raise DataError(f"{source}: not a memory snapshot", why="it is empty" if not data else "it is not a pickle")
    plain = plain_values(data, source=source, holds="a memory snapshot")
    if isinstance(plain, list):
        plain = {"segments": plain}  # torch.cuda.memory_snapshot() itself
    if not isinstance(plain, dict) or "segments" not in plain:
        found = (
            f"its keys are {sorted(map(str, plain))[:6]}" if isinstance(plain, dict) else f"a {type(plain).__name__}"
        )
        raise DataError(
            f"{source}: not a memory snapshot",
            why=f"a pickle without segments; {found}",
            fix="write one with torch.cuda.memory._dump_snapshot",
        )
    try:
        snapshot = msgspec.convert(plain, _Snapshot, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"{source}: damaged memory snapshot", why=str(error)) from error
    devices = sorted(
        {s.device for s in snapshot.segments} | {number for number, trace in enumerate(snapshot.device_traces) if trace}
    )
    if not devices:
        raise DataError(
            f"{source}: the memory snapshot is empty",
            why="no device has a segment or a recorded event",
            fix="take it while the model is on the GPU, after torch.cuda.memory._record_memory_history()",
        )
    return tuple(_device(snapshot, device, source) for device in devices)


def _device(snapshot: _Snapshot, device: int, source: str) -> MemorySnapshot:
    segments = [s for s in snapshot.segments if s.device == device]
    blocks = [b for s in segments for b in s.blocks]
    live = [b for b in blocks if b.state == _LIVE]
    trace = snapshot.device_traces[device] if device < len(snapshot.device_traces) else []
    free = [b.size for b in blocks if b.state == _FREE]
    allocated = sum(b.size for b in live)
    record = MemorySnapshot(
        path=source,
        device=device,
        segments=len(segments),
        segment_bytes=sum(s.total_size for s in segments),
        allocated_bytes=allocated,
        active_bytes=sum(b.size for b in blocks if b.state != _FREE),
        requested_bytes=sum(map(requested, live)),
        inactive_split_bytes=sum(map(_split_bytes, segments)),
        largest_free_bytes=max(free, default=0),
        events=len(trace),
        holders=holders((requested(b), _frames(b)) for b in live),
        settings=_settings(snapshot.allocator_settings),
        notes=tuple(_notes(segments, allocated, trace)),
    )
    if not trace:
        return record
    return _with_history(record, history_of(trace, live, reserved=record.segment_bytes))


def _with_history(record: MemorySnapshot, history: History) -> MemorySnapshot:
    last = history.last_oom
    capacity = None
    if last is not None and last.device_free is not None and history.reserved_at_oom is not None:
        capacity = history.reserved_at_oom + last.device_free
    return replace(
        record,
        peak_requested_bytes=history.peak_requested,
        peak_reserved_bytes=history.peak_reserved,
        history_complete=history.complete,
        history_ns=history.span_ns,
        capacity_bytes=capacity,
        oom_events=history.ooms,
        oom_request_bytes=None if last is None else last.size,
        oom_driver_free_bytes=None if last is None else last.device_free,
        driver_allocations=history.whole.driver_allocations,
        driver_frees=history.whole.driver_frees,
        retries=history.whole.retries,
        late_allocations=history.late.allocations,
        late_driver_allocations=history.late.driver_allocations,
        late_driver_frees=history.late.driver_frees,
        late_retries=history.late.retries,
        peak_holders=holders(history.live_at_peak),
    )


def requested(block: Block) -> int:
    """Bytes asked for; snapshots before torch 2.1 only have the rounded size."""
    return block.size if block.requested_size is None else block.requested_size


def _split_bytes(segment: _Segment) -> int:
    """Free blocks beside used ones: the allocator's ``inactive_split_bytes``, which leaves out expandable segments
    (c10/cuda/CUDACachingAllocator.cpp, alloc_found_block and free_block)."""
    if segment.is_expandable or len(segment.blocks) < 2:
        return 0
    return sum(b.size for b in segment.blocks if b.state == _FREE)


def holders(live: Iterable[tuple[int, Sequence[Any]]]) -> tuple[MemoryHolder, ...]:
    """Bytes by place in the code, the :data:`HOLDERS` largest."""
    sizes: dict[str, int] = defaultdict(int)
    blocks: dict[str, int] = defaultdict(int)
    for size, frames in live:
        where = place(frames)
        sizes[where] += size
        blocks[where] += 1
    largest = sorted(sizes, key=lambda where: (-sizes[where], where))[:HOLDERS]
    return tuple(MemoryHolder(where=w, size_bytes=sizes[w], blocks=blocks[w]) for w in largest)


def place(frames: Sequence[Any]) -> str:
    """``model.py:120 forward``: the innermost Python frame outside torch, its file with the folder it is in."""
    python = [f for f in frames if isinstance(f, Mapping) and str(f.get("filename", "")).endswith(".py")]
    if not python:
        return UNKNOWN_PLACE if not frames else _TORCH_ONLY
    own = [f for f in python if not _is_torchs(str(f["filename"]))]
    frame = (own or python)[0]
    file = "/".join(PurePosixPath(str(frame["filename"]).replace("\\", "/")).parts[-2:])
    return f"{file}:{frame.get('line', '?')} {frame.get('name', '')}".rstrip()


def _is_torchs(filename: str) -> bool:
    return "/torch/" in filename.replace("\\", "/")


def _frames(block: Block) -> Sequence[Any]:
    """Snapshots of torch 2.0 keep frames in a history of the block, newest first."""
    if block.frames:
        return block.frames
    first = block.history[0] if block.history else None
    frames = first.get("frames") if isinstance(first, Mapping) else None
    return frames if isinstance(frames, list) else ()


def _settings(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(value)) for key, value in settings.items()))


def _notes(segments: Sequence[_Segment], allocated: int, trace: Sequence[Event]) -> Iterable[str]:
    stated = [s.allocated_size for s in segments if s.allocated_size is not None]
    if len(stated) == len(segments) and sum(stated) != allocated:
        yield f"its segments state {sum(stated)} bytes in use and their live blocks have {allocated}"
    short = sum(sum(b.size for b in s.blocks) != s.total_size for s in segments if not s.is_expandable)
    if short:
        yield f"{counted(short, 'segment')} whose blocks do not add up to its size"
    if not trace:
        yield "no history: call torch.cuda.memory._record_memory_history() before the steps to see peaks and places"


def _recognises(candidate: Candidate) -> bool:
    """Any pickle that nothing else claims (so that one with code is refused and said so); folders with a snapshot."""
    if candidate.is_folder:
        return any(_has_segments(Candidate(file)) for file in candidate.files[:20])
    return candidate.head.startswith(PROTOCOL_MARK)


def _has_segments(candidate: Candidate) -> bool:
    return candidate.head.startswith(PROTOCOL_MARK) and b"segment" in candidate.head[:_SIGNATURE_BYTES]


def _import(source: Candidate) -> Imported:
    path = source.path
    if not source.is_folder:
        return Imported(format="memory_snapshot", path=str(path), memory=read_snapshot(path))
    found: list[MemorySnapshot] = []
    left_out = []
    for file in source.files:
        if not Candidate(file).head.startswith(PROTOCOL_MARK):
            left_out.append(LeftOut(path=str(file), reason="no pickle"))
            continue
        try:
            found += read_snapshot(file)
        except DataError as error:
            left_out.append(LeftOut(path=str(file), reason=error.line))
    if not found:
        raise DataError(
            f"{path} holds no memory snapshot that can be read", why="; ".join(each.reason for each in left_out[:3])
        )
    return Imported(format="memory_snapshot", path=str(path), memory=tuple(found), left_out=tuple(left_out))


IMPORTER = Importer(title="memory snapshot of torch", recognises=_recognises, read_files=_import, rank=70)
