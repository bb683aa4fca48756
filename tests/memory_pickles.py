"""Snapshots of torch's allocator made by hand, as ``torch.cuda.memory._dump_snapshot`` writes them.

dump(path, [segment(live(3 * MIB), free(17 * MIB))], [alloc(0, 3 * MIB)])
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20


def frames(*where: str) -> list[dict[str, Any]]:
    """Innermost first: ``/home/me/proj/model.py:12 forward``."""
    found = []
    for text in where:
        place, _, name = text.partition(" ")
        file, _, line = place.rpartition(":")
        found.append({"filename": file, "line": int(line), "name": name})
    return found


Where = str | tuple[str, ...] | None
"""A stack, innermost first."""


def _stack(where: Where) -> list[dict[str, Any]]:
    return frames(*((where,) if isinstance(where, str) else where or ()))


def live(size: int, *, asked: int | None = None, at: int | None = None, where: Where = None) -> dict[str, Any]:
    """A block in use; asked: bytes requested."""
    made = {"size": size, "requested_size": size if asked is None else asked, "state": "active_allocated"}
    return {**made, "address": at, "frames": _stack(where)}


def free(size: int) -> dict[str, Any]:
    return {"size": size, "requested_size": 0, "state": "inactive", "address": None, "frames": []}


def pending(size: int) -> dict[str, Any]:
    """Freed, and still used by another stream."""
    return {
        "size": size,
        "requested_size": size,
        "state": "active_awaiting_free",
        "address": None,
        "frames": [],
    }


def segment(*blocks: dict[str, Any], device: int = 0, expandable: bool = False) -> dict[str, Any]:
    return {
        "device": device, "address": 0, "total_size": sum(b["size"] for b in blocks), "stream": 0,
        "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": expandable, "frames": [],
        "blocks": list(blocks),
    }  # fmt: skip


def event(action: str, size: int, *, at: int = 0, where: Where = None, us: int = 0, **more: Any) -> dict[str, Any]:
    made = {"action": action, "addr": at, "size": size, "stream": 0, "time_us": us}
    return {**made, "frames": _stack(where), **more}


def alloc(at: int, size: int, where: Where = None) -> dict[str, Any]:
    return event("alloc", size, at=at, where=where)


def release(at: int, size: int, where: Where = None) -> list[dict[str, Any]]:
    """What freeing a tensor leaves: asked for, and done."""
    return [
        event("free_requested", size, at=at, where=where),
        event("free_completed", size, at=at, where=where),
    ]


def contents(
    segments: Sequence[dict[str, Any]],
    trace: Sequence[dict[str, Any]] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        **more,
        "segments": list(segments),
        "device_traces": [list(trace)],
        "allocator_settings": {"expandable_segments": False, **(settings or {})},
    }


def dump(path: Path, *args: Any, **more: Any) -> Path:
    """Writes ``contents`` of the same arguments."""
    path.write_bytes(pickle.dumps(contents(*args, **more)))
    return path
