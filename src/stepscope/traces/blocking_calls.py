"""Calls of a device's runtime by what they wait for: the device, a copy, the driver; and those that hold back a stream.

One row per family of names: whoever asks whether the host waits, asks here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import Category, Events

Blocks = Literal["device", "stream", "copy", "memory"]
"""Whose end a call waits for: all work of the device; that of a stream, queue or event; its own copy; or the driver, which
gives or takes memory."""

_CALLS: tuple[tuple[Blocks, str], ...] = (
    # CUDA, HIP, MUSA, MACA and their drivers
    ("device", r"(cuda|hip|musa|mc)(Device|Thread)(Synchronize|Reset)|(cu|hip|mu|mc)CtxSynchronize"),
    ("stream", r"(cuda|cu|hip|musa|mu|mc)(Stream|Event)Synchronize"),
    ("copy", r"(cuda|cu|hip|musa|mu|mc)(?!\w*(Async|Peer|Batch))Memcpy\w*"),
    ("memory", r"(cuda|hip|musa|mc)(Ext)?(Malloc|Free|Host(Alloc|Malloc|Free|(Unr|R)egister))(?!\w*(Async|FromPool))\w*"),
    ("memory", r"(cu|hip|mu)Mem(Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|Address)(?!\w*(Async|FromPool))\w*"),
    # Intel: Level Zero, the unified runtime of SYCL and its plugins before
    ("stream", r"ze(Event|Fence|CommandList)HostSynchronize|zeCommandQueueSynchronize|urQueueFinish|piQueueFinish"),
    ("stream", r"urEventWait|piEventsWait|(sycl::)?(_V1::)?(queue|event)::wait(_and_throw)?"),
    ("memory", r"zeMem(Alloc|Free)\w*|urUSM(\w*Alloc|Free)|pi(ext)?USM(\w*Alloc|Free)"),
    # Ascend: ACL and the runtime below it
    ("device", r"(aclrt|rt)(SynchronizeDevice|DeviceSynchronize)"),
    ("stream", r"(aclrt|rt)(Synchronize(Stream|Event)|(Stream|Event)Synchronize)"),
    ("copy", r"(aclrt|rt)(?!\w*Async)Memcpy\w*"),
    ("memory", r"(aclrt|rt)(Malloc|Free|MapMem|UnmapMem|ReserveMemAddress|ReleaseMemAddress)\w*"),
    # Cambricon, Gaudi, ROCr
    ("device", r"cnrtSyncDevice|synDeviceSynchronize"),
    ("stream", r"cn(rt)?QueueSync\w*|cnrt(Queue)?WaitNotifier|syn(Stream|Event)Synchronize|hsa_(amd_)?signal_wait\w*"),
    ("copy", r"cnrt(?!\w*Async)Memcpy\w*"),
    ("memory", r"cnrt(Malloc|Free)\w*"),
    # what the names of waits say elsewhere
    ("stream", r"(?i:(?!\w*(async|enqueue|query|stream_?wait))\w*(synchroni[sz]e|host_?sync|queue_?finish|wait_?for))\w*"),
)  # fmt: skip
"""What it waits for, and how its name reads; earlier lines win. An asynchronous copy that its call waited for (pageable
memory) is known by its times."""

_OF_NAME = r"(?:\w+@)?(?:{})(?:WithTimeout)?(?:_v\d+|_ptds|_ptsz|_spt)*$"
"""Around it: ``AscendCL@``, versions of the interface, the per-thread default stream."""

STREAM_WAIT = re.compile(r"(cuda|cu|hip|musa|mu|mc)StreamWaitEvent|aclrtStreamWaitEvent|(ur|pi)EnqueueEventsWait")
"""Calls that return at once and hold back a stream."""

ASYNC_COPY = re.compile(r"(cuda|hip|musa|mc|aclrt)Memcpy.*Async")


_POOLED = re.compile(r"(cuda|cu|hip|musa|mc)(Mem)?(Malloc|Alloc|Free)(FromPool)?Async")
"""Calls for memory of a pool, which return at once unless the pool asks the driver."""

POOL_ASKS_NS = 50_000
"""A call that lasts so long did ask it."""


_REPLAY = re.compile(
    r"(cuda|cu|hip|musa|mu|mc)GraphLaunch|aclmdlRIExecute|urCommandBufferEnqueue|urEnqueueCommandBuffer"
)


def replays(name: str) -> bool:
    """Whether a call launches all kernels of a graph at once."""
    return _REPLAY.match(name) is not None


def is_pooled(name: str) -> bool:
    """Whether a call takes memory from a pool, or gives it back there."""
    return _POOLED.match(name) is not None


@lru_cache(maxsize=1 << 12)
def blocks_on(name: str) -> Blocks | None:
    """What a call of the runtime waits for; None where it does not hold the host."""
    return next((blocks for blocks, pattern in _CALLS if re.match(_OF_NAME.format(pattern), name)), None)


def blocking(events: Events, kind: Blocks | None = None) -> NDArray[np.bool_]:
    """Calls that hold the host, those of one kind where it is given; shape (len(events),)."""
    calls = events.of(Category.RUNTIME, Category.DRIVER)
    chosen = np.zeros(len(events.names), dtype=bool)
    for code in np.flatnonzero(np.bincount(events.name[calls], minlength=1)).tolist():
        on = blocks_on(events.names[code])
        chosen[code] = on is not None and kind in (None, on)
    asks = kind in (None, "memory") and events.named(is_pooled) & (events.dur_ns >= POOL_ASKS_NS)
    return calls & (chosen[events.name] | asks)
