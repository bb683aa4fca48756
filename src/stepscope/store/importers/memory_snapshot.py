"""Snapshots of the CUDA caching allocator (``torch.cuda.memory._dump_snapshot``): who holds what, peaks, fragments.

A pickle is read with an unpickler that knows no class and no function; a snapshot is made of plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import GRADIENT, OPTIMIZER, PARAMETER, Imported, LeftOut, MemorySnapshot
from stepscope.store.importer import PROTOCOL_MARK, Candidate, Importer, plain_values
from stepscope.store.memory_history import (
    AllocatorEvent,
    Bytes,
    SegmentPiece,
    alive,
    by_kind,
    holders,
    judge,
    lives_of,
    place,
    requested,
    with_history,
)
from stepscope.store.reader import read_bytes

_LIVE = "active_allocated"
_FREE = "inactive"


Device = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]


@dataclass(kw_only=True)
class _Segment:
    total_size: Bytes
    blocks: list[SegmentPiece]
    device: Device = 0
    address: int = 0
    allocated_size: Bytes | None = None
    active_size: Bytes | None = None
    is_expandable: bool = False


@dataclass(kw_only=True)
class _Job:
    """What the hook of `stepscope profile` adds. tensors: device, address, kind and name of what is known."""

    rank: int
    step: int
    tensors: list[tuple[int, int, str, str]]
    device: int | None = None
    capacity_bytes: Bytes | None = None


@dataclass(kw_only=True)
class _Snapshot:
    segments: list[_Segment]
    device_traces: list[list[AllocatorEvent]] = field(default_factory=list)
    allocator_settings: dict[str, Any] = field(default_factory=dict)
    stepscope: _Job | None = None


def read_snapshot(path: Path) -> tuple[MemorySnapshot, ...]:
    """Read one record for each device with memory or a history. Raises DataError for what is no snapshot, is damaged, or
    holds code."""
    source = str(path)
    data = read_bytes(path)
    if data[:1] != PROTOCOL_MARK:
        raise DataError(f"{source}: not a memory snapshot", why="it is empty" if not data else "it is not a pickle")
    plain = plain_values(data, source=source, holds="a memory snapshot")
    if isinstance(plain, list):
        plain = {"segments": plain}  # torch.cuda.memory_snapshot() itself
    if not isinstance(plain, dict) or "segments" not in plain:
        contents = (
            f"its keys are {sorted(map(str, plain))[:6]}" if isinstance(plain, dict) else f"a {type(plain).__name__}"
        )
        raise DataError(
            f"{source}: not a memory snapshot",
            why=f"a pickle without segments; {contents}",
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
    return tuple(_device_snapshot(snapshot, device, source) for device in devices)


_KINDS = {"parameter": PARAMETER, "buffer": PARAMETER, "gradient": GRADIENT, "optimizer": OPTIMIZER}
"""The hook's word for a kind -> the kind."""


def _device_snapshot(snapshot: _Snapshot, device: int, source: str) -> MemorySnapshot:
    """Return the snapshot of one device: segments, blocks in use by kind, and the history of allocations, bytes."""
    segments = [s for s in snapshot.segments if s.device == device]
    blocks = [b for s in segments for b in s.blocks]
    live = [b for b in blocks if b.state == _LIVE]
    for block in live:
        block.frames = block.frames or _frames_of_2_0(block)
    trace = snapshot.device_traces[device] if device < len(snapshot.device_traces) else []
    free = [b.size for b in blocks if b.state == _FREE]
    allocated = sum(b.size for b in live)
    job = snapshot.stepscope
    facts = {a: (_KINDS[k], name) for d, a, k, name in job.tensors if d == device and k in _KINDS} if job else {}
    lives = lives_of(trace, live)
    judge(lives, facts)
    now = alive(lives, len(trace))
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
        holders=holders(now, lambda life: place(life.stack)),
        kinds=by_kind(now),
        capacity_bytes=job.capacity_bytes if job is not None and job.device == device else None,
        named=bool(facts),
        rank=None if job is None else job.rank,
        step=None if job is None else job.step,
        settings=_allocator_settings(snapshot.allocator_settings),
        notes=tuple(_snapshot_notes(segments, allocated, trace)),
    )
    return with_history(record, trace, lives) if trace else record


def _split_bytes(segment: _Segment) -> int:
    """Count bytes of free blocks beside used ones: ``inactive_split_bytes``, which leaves out expandable segments
    (c10/cuda/CUDACachingAllocator.cpp, alloc_found_block and free_block)."""
    if segment.is_expandable or len(segment.blocks) < 2:
        return 0
    return sum(b.size for b in segment.blocks if b.state == _FREE)


def _frames_of_2_0(block: SegmentPiece) -> list[Any]:
    """Return the frames of a block of torch 2.0, which keeps them in a history of the block, newest first."""
    first = block.history[0] if block.history else None
    frames = first.get("frames") if isinstance(first, Mapping) else None
    return frames if isinstance(frames, list) else []


def _allocator_settings(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(value)) for key, value in settings.items()))


def _snapshot_notes(segments: Sequence[_Segment], allocated: int, trace: Sequence[AllocatorEvent]) -> Iterable[str]:
    """Yield where a snapshot contradicts itself."""
    stated = [s.allocated_size for s in segments if s.allocated_size is not None]
    if len(stated) == len(segments) and sum(stated) != allocated:
        yield f"its segments state {sum(stated)} bytes in use and their live blocks have {allocated}"
    short = sum(sum(b.size for b in s.blocks) != s.total_size for s in segments if not s.is_expandable)
    if short:
        yield f"{counted(short, 'segment')} whose blocks do not add up to its size"
    if not trace:
        yield "no history: call torch.cuda.memory._record_memory_history() before the steps to see peaks and places"


def _recognises_pickle(candidate: Candidate) -> bool:
    """Return whether it is a pickle, any that nothing else claims (so that one with code is refused and said so)."""
    return candidate.head.startswith(PROTOCOL_MARK)


def _import_snapshots(source: Candidate) -> Imported:
    """Read one snapshot, or those of a folder; files that are none are left out."""
    path = source.path
    if not source.is_folder:
        return Imported(format="memory_snapshot", path=str(path), memory=read_snapshot(path))
    snapshots: list[MemorySnapshot] = []
    left_out = []
    for file in source.files:
        if not Candidate(file).head.startswith(PROTOCOL_MARK):
            left_out.append(LeftOut(path=str(file), reason="no pickle"))
            continue
        try:
            snapshots += read_snapshot(file)
        except DataError as error:
            left_out.append(LeftOut(path=str(file), reason=error.line))
    if not snapshots:
        raise DataError(
            f"{path} holds no memory snapshot that can be read", why="; ".join(file.reason for file in left_out[:3])
        )
    return Imported(format="memory_snapshot", path=str(path), memory=tuple(snapshots), left_out=tuple(left_out))


IMPORTER = Importer(
    title="memory snapshot of torch", recognises=_recognises_pickle, read_files=_import_snapshots, rank=70
)
