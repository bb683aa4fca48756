"""Calls of a device's runtime by what they wait for: the device, a copy, the driver; and those that hold back a stream.

One row per family of names: whoever asks whether the host waits, asks here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.words import holds_any
from stepscope.traces.events import Category, Events

Blocks = Literal["device", "stream", "copy", "memory"]
"""Whose end a call waits for: all work of the device; that of a stream, queue or event; its own copy; or the driver, which
gives or takes memory."""

_CALLS: tuple[tuple[Blocks, str, str], ...] = (
    # CUDA, HIP, MUSA, MACA and their drivers
    ("device", "synchronize reset", r"(cuda|hip|musa|mc)(Device|Thread)(Synchronize|Reset)|(cu|hip|mu|mc)CtxSynchronize"),
    ("stream", "synchronize", r"(cuda|cu|hip|musa|mu|mc)(Stream|Event)Synchronize"),
    ("copy", "memcpy", r"(cuda|cu|hip|musa|mu|mc)(?!\w*(Async|Peer|Batch))Memcpy\w*"),
    ("memory", "malloc free host",
     r"(cuda|hip|musa|mc)(Ext)?(Malloc|Free|Host(Alloc|Malloc|Free|(Unr|R)egister))(?!\w*(Async|FromPool))\w*"),
    ("memory", "umem ipmem",
     r"(cu|hip|mu)Mem(Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|Address)(?!\w*(Async|FromPool))\w*"),
    # Intel: Level Zero, the unified runtime of SYCL and its plugins before
    ("stream", "hostsync zecommandqueue queuefinish",
     r"ze(Event|Fence|CommandList)HostSynchronize|zeCommandQueueSynchronize|urQueueFinish|piQueueFinish"),
    ("stream", "ureventwait pieventswait ::wait",
     r"urEventWait|piEventsWait|(sycl::)?(_V1::)?(queue|event)::wait(_and_throw)?"),
    ("memory", "zemem usm", r"zeMem(Alloc|Free)\w*|urUSM(\w*Alloc|Free)|pi(ext)?USM(\w*Alloc|Free)"),
    # Ascend: ACL and the runtime below it
    ("device", "rtsync rtdevice", r"(aclrt|rt)(SynchronizeDevice|DeviceSynchronize)"),
    ("stream", "rtsync rtstream rtevent", r"(aclrt|rt)(Synchronize(Stream|Event)|(Stream|Event)Synchronize)"),
    ("copy", "rtmemcpy", r"(aclrt|rt)(?!\w*Async)Memcpy\w*"),
    ("memory", "rtm rtfree rtu rtre", r"(aclrt|rt)(Malloc|Free|MapMem|UnmapMem|ReserveMemAddress|ReleaseMemAddress)\w*"),
    # Cambricon, Gaudi, ROCr
    ("device", "cnrtsync syndevice", r"cnrtSyncDevice|synDeviceSynchronize"),
    ("stream", "cn syn hsa_",
     r"cn(rt)?QueueSync\w*|cnrt(Queue)?WaitNotifier|syn(Stream|Event)Synchronize|hsa_(amd_)?signal_wait\w*"),
    ("copy", "cnrtmemcpy", r"cnrt(?!\w*Async)Memcpy\w*"),
    ("memory", "cnrtmalloc cnrtfree", r"cnrt(Malloc|Free)\w*"),
    # what the names of waits say elsewhere
    ("stream", "synchroni host queue wait",
     r"(?i:(?!\w*(async|enqueue|query|stream_?wait))\w*(synchroni[sz]e|host_?sync|queue_?finish|wait_?for))\w*"),
)  # fmt: skip
"""What it waits for; words, one of which is in every such name in lower case and is looked for first, as patterns take long
to compile; and how its name reads. Earlier lines win. An asynchronous copy that its call waited for (pageable memory) is
known by its times."""

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
    lower = name.lower()
    for blocks, words, pattern in _CALLS:
        if holds_any(lower, words) and re.match(_OF_NAME.format(pattern), name):
            return blocks
    return None


def blocking(events: Events, kind: Blocks | None = None) -> NDArray[np.bool_]:
    """Calls that hold the host, those of one kind where it is given; shape (len(events),)."""
    calls = events.of(Category.RUNTIME, Category.DRIVER)
    chosen = events.named(lambda name: (on := blocks_on(name)) is not None and kind in (None, on), calls)
    if kind in (None, "memory"):
        chosen |= events.named(is_pooled, calls & (events.dur_ns >= POOL_ASKS_NS))
    return chosen
