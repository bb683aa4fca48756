"""What all ways of measuring a comm cell share on this rank.

Which sizes can be measured: what the type and the world divide, and what memory holds. The same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from stepscope.collectives import REGISTRY as SPECS
from stepscope.collectives import Collective
from stepscope.core.dataclass import record
from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.rank import recorder
from stepscope.rank.collectives import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.collectives import Build, Exchange, Setup
from stepscope.rank.comm.loop import (
    BackendLacksError,
    Call,
    Timed,
    clock_of,
    first_line,
    leave_coalescing,
    measure,
    time_calls,
)
from stepscope.rank.comm.values import Values, fill, first_wrong
from stepscope.rank.heartbeat import Pulse, host_memory_left
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.records.comm import CommMeasure, CommSpec
from stepscope.store.writer import LineFile


@record
class CommJob:
    """One comm cell on one rank. ``salts`` gives every check fresh values, the same on all ranks."""

    cell: CommSpec
    settings: CommMeasure
    mesh: Mesh
    control: Control
    pulse: Pulse
    writer: LineFile
    salts: count[int] = field(default_factory=lambda: count(1))

    @property
    def device(self) -> torch.device:
        return self.mesh.device

    @property
    def host(self) -> str:
        return self.pulse.host

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.cell.dtype)
        return dtype

    @property
    def spec(self) -> Collective:
        return SPECS.load(self.cell.op)

    @property
    def build(self) -> Build:
        return IMPLEMENTATIONS.load(self.cell.op)

    def setup(self, numel: int) -> Setup:
        """Return what a collective of so many elements needs."""
        return Setup(
            mesh=self.mesh,
            dtype=self.dtype,
            numel=numel,
            reduce_op=self.cell.reduce_op,
            in_place=self.cell.in_place,
            root=self.cell.root,
            pattern=self.cell.pattern,
        )

    def enter(self, phase: str, size_bytes: int | None) -> None:
        """Tell the controller: ``phase`` of this size begins."""
        self.pulse.enter(phase, op=self.cell.op, size_bytes=size_bytes)

    def barrier(self) -> None:
        dist.barrier(self.mesh.group)

    def runner(self, call: Call, *, pace: Callable[[], object] | None = None) -> Callable[[int], list[int]]:
        """Return ``run(count)``: durations of so many calls, paced as the cell says (or by ``pace``)."""
        pulse = self.pulse

        def enter() -> None:
            pulse.step += 1

        if pace is None and self.cell.pacing == "barrier":
            pace = partial(dist.barrier, self.mesh.group)
        timed = partial(time_calls, call, clock=clock_of(self.device), enter=enter, pace=pace)
        if pace is not None:
            return timed

        def together(number: int) -> list[int]:
            self.barrier()  # rank 0 comes late from deciding: not the first call's fault
            return timed(number)

        return together

    def measured(self, run: Callable[[int], list[int]], size_bytes: int | None) -> Timed:
        """Return :func:`measure` of one size, whose phases the controller is told."""
        return measure(run, self.settings, self.control, on_phase=partial(self.enter, size_bytes=size_bytes))

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def check(self, call: Call, exchanges: list[Exchange]) -> tuple[bool | None, str | None]:
        """Return (whether a call on fresh input gives what it must, the first wrong element). None: nothing to look at
        here."""
        if not self.settings.check:
            return None, None
        values = [self.values() for _ in exchanges]
        for exchange, fresh in zip(exchanges, values, strict=True):
            fill(exchange, fresh)
        self.synchronize()
        call()
        self.synchronize()
        return self.verdict(exchanges, values)

    def values(self) -> Values:
        """Return fresh values for one exchange. All ranks ask in the same order."""
        return Values(
            dtype=self.dtype,
            world_size=self.mesh.world_size,
            reduce_op=self.cell.reduce_op if self.spec.reduces else None,
            salt=next(self.salts),
        )

    def verdict(self, exchanges: list[Exchange], values: list[Values]) -> tuple[bool | None, str | None]:
        """Return (whether every output is right, the first wrong element); (None, None) where this rank has no output."""
        if not any(exchange.outputs for exchange in exchanges):
            return None, None
        for number, (exchange, fresh) in enumerate(zip(exchanges, values, strict=True), start=1):
            wrong = first_wrong(exchange, fresh)
            if wrong is not None:
                return False, wrong if len(exchanges) == 1 else f"call {number} of {len(exchanges)}, {wrong}"
        return True, None

    def lacks(self, attempt: Callable[[], object]) -> str | None:
        """Say why some rank's backend refuses ``attempt``, in its own words; None: all ranks could. All ranks call this."""
        words: str | None = None
        try:
            attempt()
            self.synchronize()
        except BackendLacksError as error:
            words = str(error)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if recorder.classify(error) != "error":
                raise
            words = first_line(error)
            leave_coalescing(self.mesh)
        return next((text for text in self.control.all_gather(words) if text is not None), None)


T = TypeVar("T")

MOST_ROUNDING = 0.01
ASK_FROM_BYTES = 16 * 2**20
"""Below this nobody asks the other ranks for their memory: whatever runs at all has room for it."""

HOST_RESERVE_FRACTION = 0.10  # the watchdog ends a rank that leaves less than 5%
DEVICE_RESERVE_FRACTION = 0.05
CHECK_BYTES = 64 * 2**20
"""Tables and temporaries of filling and checking, at most."""


@record
class Size:
    """One asked size. size_bytes, numel: of S, None where ``skipped`` says why it is not measured."""

    asked_bytes: int
    size_bytes: int | None
    numel: int | None
    skipped: str | None = None


def plan_size(collective: Collective, asked_bytes: int, *, itemsize: int, world_size: int) -> Size:
    """Return the size that is sent for ``asked_bytes``: rounded down to what divides it, by 1% at most."""
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
    """Count the bytes of all buffers of one exchange on this rank, the backend's own copies included; nothing is
    allocated."""
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
    """Say why buffers of ``needed_bytes`` on this rank do not fit, or those of another; None: all fit. Asks all ranks."""
    if size_bytes < ASK_FROM_BYTES:
        return None
    on_host = needed_bytes if job.device.type == "cpu" else 0
    left, total = host_memory_left()
    needs = {
        "host": job.host,
        "needed": on_host + CHECK_BYTES,
        "left": int(left - HOST_RESERVE_FRACTION * total),
        "device": _no_room_on_device(job, needed_bytes) if job.device.type == "cuda" else None,
    }
    ranks: list[dict[str, Any]] = job.control.all_gather(needs)
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
    """Say that the device has too little memory left; None: it has enough."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(job.device)
    needed, room = needed_bytes + CHECK_BYTES, int(free - DEVICE_RESERVE_FRACTION * total)
    if needed <= room:
        return None
    return f"buffers need {format_size(needed)}, {format_size(max(0, room))} of device memory is free"


def made(job: CommJob, size: Size, needed_bytes: int, make: Callable[[], T]) -> T | str:
    """Return what ``make`` allocates, ``needed_bytes`` of it, or why some rank has no room for it: the same on every rank.

    The others are asked from the size on where it can fail.
    """
    if size.size_bytes is None:
        return size.skipped or "nothing to send"
    job.enter("build", size.size_bytes)
    reason = no_room(job, needed_bytes, size_bytes=size.size_bytes)
    if reason is not None:
        return reason
    try:
        allocated: T | str = make()
    except (RuntimeError, MemoryError) as error:
        if recorder.classify(error) not in ("oom", "host_oom"):
            raise
        allocated = f"rank {job.mesh.rank}: {str(error).splitlines()[0]}"
    failed = allocated if isinstance(allocated, str) else None
    if size.size_bytes < ASK_FROM_BYTES:
        if failed is not None:
            raise MemoryError(failed)
        return allocated
    return next((text for text in job.control.all_gather(failed) if text is not None), allocated)
