"""Which sizes can be measured: what the type and the world divide, and what memory holds. The same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from stepscope.collectives import Collective
from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.rank import recorder
from stepscope.rank.collectives import Build, Setup
from stepscope.rank.comm.job import CommJob
from stepscope.rank.heartbeat import host_memory_left

T = TypeVar("T")

MOST_ROUNDING = 0.01
ASK_FROM_BYTES = 16 * 2**20
"""Below this nobody asks the other ranks for their memory: whatever runs at all has room for it."""

HOST_RESERVE_FRACTION = 0.10  # the watchdog ends a rank that leaves less than 5%
DEVICE_RESERVE_FRACTION = 0.05
CHECK_BYTES = 64 * 2**20
"""Tables and temporaries of filling and checking, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One asked size. size_bytes, numel: of S, None where ``skipped`` says why it is not measured."""

    asked_bytes: int
    size_bytes: int | None
    numel: int | None
    skipped: str | None = None


def plan_size(collective: Collective, asked_bytes: int, *, itemsize: int, world_size: int) -> Size:
    """The size that is sent for ``asked_bytes``: rounded down to what divides it, by 1% at most."""
    if not collective.has_payload:
        return Size(asked_bytes=asked_bytes, size_bytes=0, numel=0)
    size = collective.payload_bytes(asked_bytes, itemsize=itemsize, world_size=world_size)
    if asked_bytes > 0 and size >= (1 - MOST_ROUNDING) * asked_bytes and size > 0:
        return Size(asked_bytes=asked_bytes, size_bytes=size, numel=size // itemsize)
    parts = world_size if collective.parts == "world" else 1
    smallest = f"{counted(itemsize * parts, 'byte')} (one element"
    smallest += f" for each of {counted(world_size, 'rank')})" if parts > 1 else ")"
    if asked_bytes <= 0:
        reason = "0 bytes: nothing to send"
    elif size == 0:
        reason = f"{counted(asked_bytes, 'byte')}: less than {smallest}"
    else:
        reason = (
            f"{counted(asked_bytes, 'byte')} would be rounded down to {size:,}, by more than {MOST_ROUNDING:.0%}: "
            f"sizes are multiples of {smallest}"
        )
    return Size(asked_bytes=asked_bytes, size_bytes=None, numel=None, skipped=reason)


def buffer_bytes(build: Build, setup: Setup, *, op: str) -> int:
    """Bytes of all buffers of one exchange on this rank, the backend's own copies included; nothing is allocated."""
    sizes: list[int] = []

    def count(numel: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        del device
        sizes.append(numel * dtype.itemsize)
        return torch.empty(numel, dtype=dtype, device="meta")

    build(replace(setup, allocate=count))
    # gloo reduces a copy of the whole input and hands out parts of it.
    copies = setup.numel * setup.dtype.itemsize if op == "reduce_scatter" and setup.mesh.backend == "gloo" else 0
    return sum(sizes) + copies


def no_room(job: CommJob, needed_bytes: int, *, size_bytes: int) -> str | None:
    """Why buffers of ``needed_bytes`` on this rank do not fit, or those of another; None: all fit. Asks all ranks."""
    if size_bytes < ASK_FROM_BYTES:
        return None
    on_host = needed_bytes if job.device.type == "cpu" else 0
    left, total = host_memory_left()
    mine = {
        "host": job.host,
        "needed": on_host + CHECK_BYTES,
        "left": int(left - HOST_RESERVE_FRACTION * total),
        "device": _no_room_on_device(job, needed_bytes) if job.device.type == "cuda" else None,
    }
    ranks: list[dict[str, Any]] = job.control.all_gather(mine)
    for rank, one in enumerate(ranks):
        if one["device"] is not None:
            return f"rank {rank}: {one['device']}"
    for host in dict.fromkeys(str(one["host"]) for one in ranks):
        local = [one for one in ranks if one["host"] == host]
        needed = sum(one["needed"] for one in local)
        room = min(one["left"] for one in local)
        if needed > room:
            return (
                f"buffers of {counted(len(local), 'rank')} on {host} need {format_size(needed)}, "
                f"{format_size(max(0, room))} of host memory is free"
            )
    return None


def _no_room_on_device(job: CommJob, needed_bytes: int) -> str | None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(job.device)
    needed, room = needed_bytes + CHECK_BYTES, int(free - DEVICE_RESERVE_FRACTION * total)
    if needed <= room:
        return None
    return f"buffers need {format_size(needed)}, {format_size(max(0, room))} of device memory is free"


def made(job: CommJob, size: Size, needed_bytes: int, make: Callable[[], T]) -> T | str:
    """What ``make`` allocates, ``needed_bytes`` of it, or why some rank has no room for it: the same on every rank.

    The others are asked from the size on where it can fail.
    """
    if size.size_bytes is None:
        return size.skipped or "nothing to send"
    job.enter("build", size.size_bytes)
    reason = no_room(job, needed_bytes, size_bytes=size.size_bytes)
    if reason is not None:
        return reason
    try:
        found: T | str = make()
    except (RuntimeError, MemoryError) as error:
        if recorder.classify(error) not in ("oom", "host_oom"):
            raise
        found = f"rank {job.mesh.rank}: {str(error).splitlines()[0]}"
    failed = found if isinstance(found, str) else None
    if size.size_bytes < ASK_FROM_BYTES:
        if failed is not None:
            raise MemoryError(failed)
        return found
    return next((text for text in job.control.all_gather(failed) if text is not None), found)
