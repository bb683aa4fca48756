"""The events of one rank as columns, and a set of ranks. What every analysis reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, fields, replace
from enum import IntEnum
from functools import cached_property, wraps
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.stats.spans import Spans, union
from stepscope.traces.sections import EVERY, Wanted

if TYPE_CHECKING:
    from stepscope.records.trace_quality import QualityFact

T = TypeVar("T")

Ints = NDArray[np.int64]
Codes = NDArray[np.signedinteger[Any]]
"""Integers in the narrowest type that holds a column: widen them before computing with them."""

NONE = -1
"""Stands in integer columns where the trace says nothing."""


class Category(IntEnum):
    """What kind of event it is, over all spellings of all profiler generations."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    CPU_OP = 4
    RUNTIME = 5  # cuda_runtime, hip runtime: the API calls that launch and wait
    DRIVER = 6
    USER_ANNOTATION = 7
    GPU_ANNOTATION = 8
    PYTHON = 9
    SYNC = 10  # cuda_sync: the profiler's own account of a wait, not work of the device
    OVERHEAD = 11


DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

CATEGORIES: dict[str, Category] = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Kernel": Category.KERNEL,
    "Memcpy": Category.MEMCPY,
    "Memset": Category.MEMSET,
    "concurrent_kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "user_annotation": Category.USER_ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_sync": Category.SYNC,
    "overhead": Category.OVERHEAD,
}
"""``cat`` as written by the profiler -> Category; anything else is OTHER."""


@record
class CollectiveArgs:
    """The communication arguments that NCCL's record_param_comms leaves on an event; None where absent."""

    name: str
    in_elements: int | None
    out_elements: int | None
    dtype: str | None
    group_name: str | None
    group_description: str | None
    group_size: int | None
    group_ranks: str | None
    sequence: int | None
    comms_id: int | None
    source_rank: int | None = None  # of a point-to-point message
    destination_rank: int | None = None


@record
class MemoryInstants:
    """The profiler's ``[memory]`` instants: one row per allocation (bytes > 0) or release (bytes < 0)."""

    ts_ns: Ints
    size_bytes: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    device_type: Codes  # 0 CPU, 1 CUDA/HIP, as torch's DeviceType numbers them
    device: Codes

    def __len__(self) -> int:
        return len(self.ts_ns)


@record
class Shapes:
    """The recorded inputs of an operator, as the JSON text of the trace: ``[[64, 3], []]``, ``["float", ""]``."""

    dims: str
    types: str


WITH_VALUES = frozenset({
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_cudnn_attention_backward",
    "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward",
    "aten::convolution", "aten::convolution_backward",
})  # fmt: skip
"""Operators whose FLOP the shapes of their tensors do not tell (causal, stride): of these the other inputs are kept, too."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """All spans of one rank, in file order. Columns have one entry per event; NONE where nothing was recorded.

    Times are integer nanoseconds from the decimal text of the file. ``end_ns`` = ``ts_ns`` + ``dur_ns``.
    For a device event (KERNEL, MEMCPY, MEMSET) ``stream`` and ``device`` say where it ran; a host event's
    ``stream`` is what its launch asked for, when recorded, and never makes it a device event.
    """

    ts_ns: Ints
    dur_ns: Ints
    category: NDArray[np.int8]
    name: Codes  # into names
    thread: Codes  # into threads
    stream: Codes
    device: Codes
    correlation: Ints  # links a launch (RUNTIME, DRIVER) to its device events
    external_id: Ints  # links a launch to the operator that made it; on gloo a span to its launch
    sequence: Ints  # autograd sequence number, the same on a forward operator and its backward
    forward_thread: Codes  # thread of the forward operator, > 0 on backward operators
    shape: Codes  # into shapes
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]  # (pid, tid) as text
    shapes: tuple[Shapes, ...] = ()
    collectives: dict[int, CollectiveArgs] = field(default_factory=dict)  # by event index
    copied_bytes: dict[int, int] = field(default_factory=dict)  # by event index: memcpy and memset sizes
    flop: dict[int, int] = field(default_factory=dict)  # by event index, where the profiler recorded it
    values: dict[int, str] = field(default_factory=dict)  # by event index: JSON of other inputs, WITH_VALUES
    memory: MemoryInstants | None = None

    def __len__(self) -> int:
        return len(self.ts_ns)

    @cached_property
    def end_ns(self) -> Ints:
        return self.ts_ns + self.dur_ns

    @cached_property
    def is_device(self) -> NDArray[np.bool_]:
        """True for kernels, copies and memsets: decided by ``cat`` alone."""
        return (self.category >= Category.KERNEL) & (self.category <= Category.MEMSET)

    def where(self, *categories: Category) -> Ints:
        """Indices of the events of these categories, in file order."""
        return np.flatnonzero(self.of(*categories))

    def of(self, *categories: Category) -> NDArray[np.bool_]:
        """True for the events of these categories."""
        among = np.zeros(len(Category), dtype=bool)
        among[[int(c) for c in categories]] = True
        return among[self.category]

    def named(self, test: Callable[[str], object], among: NDArray[Any] | None = None) -> NDArray[np.bool_]:
        """True for the events (of ``among``, a mask or indices) whose name passes ``test``, asked once for each name."""
        if among is None:
            return np.fromiter(map(bool, map(test, self.names)), dtype=bool, count=len(self.names))[self.name]
        indices = np.flatnonzero(among) if among.dtype == bool else among
        names, passed = self.name[indices], np.zeros(len(self.names), dtype=bool)
        for code in _different(names):
            passed[code] = bool(test(self.names[code]))
        chosen = np.zeros(len(self), dtype=bool)
        chosen[indices] = passed[names]
        return chosen

    def codes(self, chosen: NDArray[Any]) -> list[int]:
        """Indices into ``names`` of the different names of these events (a mask or indices), ascending."""
        return _different(self.name[chosen])

    def begins(self, prefixes: str | tuple[str, ...]) -> NDArray[np.bool_]:
        """True for the events whose name begins with one of these."""
        return self.named(methodcaller("startswith", prefixes))

    def by_start(self, chosen: NDArray[np.bool_]) -> Ints:
        """Indices of the events for which ``chosen`` holds, in order of their start."""
        indices = np.flatnonzero(chosen)
        return indices[np.argsort(self.ts_ns[indices], kind="stable")]

    def lane(self, chosen: Ints) -> Ints:
        """One number for the device and the stream of each of these events."""
        return self.device[chosen].astype(np.int64) * (2**31) + self.stream[chosen]

    def busiest_thread(self, chosen: Ints) -> int:
        """The thread with most time in these events, of which there are some."""
        return int(np.bincount(self.thread[chosen], weights=self.dur_ns[chosen]).argmax())

    def spans(self, chosen: NDArray[Any]) -> Spans:
        """When any of these events (indices, or a mask) runs."""
        return union(self.ts_ns[chosen], self.end_ns[chosen])

    def name_of(self, index: int) -> str:
        return self.names[int(self.name[index])]


def _different(codes: Codes) -> list[int]:
    """Return the different ones, ascending. np.unique imports numpy.ma: 40 ms, a sixth of reading a small trace."""
    return np.flatnonzero(np.bincount(codes, minlength=1)).tolist()


def selected(events: Events, kept: NDArray[np.bool_], source: Ints | None = None) -> Events:
    """The events that are kept, shape (len(events),). source: the event that has what an event lacks beside its shape, NONE
    for none; with it, memory is kept until the first event that is left out."""
    places = np.flatnonzero(kept)
    columns = {
        column.name: getattr(events, column.name)[places]
        for column in fields(events)
        if isinstance(getattr(events, column.name), np.ndarray)
    }
    at = {int(old): new for new, old in enumerate(places.tolist())}
    gave: dict[int, list[int]] = {}
    if source is not None:
        for old in places[source[places] != NONE].tolist():
            gave.setdefault(int(source[old]), []).append(at[old])

    def moved(by_event: dict[int, T]) -> dict[int, T]:
        return {at[index]: value for index, value in by_event.items() if index in at}

    given = {new: value for index, value in events.values.items() for new in gave.get(index, ())}
    memory = events.memory
    if memory is not None and source is not None and not kept.all():
        before = memory.ts_ns < int(events.ts_ns[~kept].min())
        memory = replace(memory, **{column.name: getattr(memory, column.name)[before] for column in fields(memory)})
    return replace(
        events,
        **columns,
        collectives=moved(events.collectives),
        copied_bytes=moved(events.copied_bytes),
        flop=moved(events.flop),
        values=given | moved(events.values),
        memory=memory,
    )


def column(rows: Iterable[object], name: str) -> Ints:
    """One field of all rows, NONE where it is None."""
    values = [getattr(row, name) for row in rows]
    return np.array([NONE if value is None else value for value in values], dtype=np.int64)


@record
class ProcessGroup:
    """One entry of distributedInfo.pg_config."""

    name: str
    description: str
    size: int | None
    ranks: tuple[int, ...]
    backend: str


@record
class TraceMeta:
    """What the file says of itself beside its events. None = not recorded."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    groups: tuple[ProcessGroup, ...] = ()
    device_names: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    base_time_ns: int | None = None
    stepscope: dict[str, object] = field(default_factory=dict)  # metadata that `bench --profile` adds
    processes: dict[str, str] = field(default_factory=dict)  # what they are called, by id
    unread: dict[str, int] = field(default_factory=dict)  # spans by category, of a device whose categories are unknown


@record
class Note:
    """Something about a file that its reader must know: what was repaired, left out or assumed."""

    kind: str  # repaired | truncated | dropped | assumed | skipped | beside | foreign | missing | divided
    text: str


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank's trace: its events and where they came from. ``partial`` = only device events were read; ``alone`` = no
    other rank's trace is read beside it."""

    rank: int
    path: Path
    size_bytes: int
    events: Events
    meta: TraceMeta
    notes: tuple[Note, ...] = ()
    partial: bool = False
    quality: tuple[QualityFact, ...] = ()  # that only its reading knows; without the rank
    alone: bool = True


class RankView:
    """One rank's trace as its analyses see it; what several of them read is ``made`` once."""

    def __init__(self, trace: RankTrace, wanted: Wanted = EVERY) -> None:
        self.trace, self.wanted = trace, wanted
        self.rank, self.events, self.meta = trace.rank, trace.events, trace.meta
        self.made: dict[object, Any] = {}


def once(make: Callable[[RankView], T]) -> Callable[[RankView], T]:
    """Keep with a view what is made of it, for whoever asks next."""

    @wraps(make)
    def made(view: RankView) -> T:
        if made not in view.made:
            view.made[made] = make(view)
        value: T = view.made[made]
        return value

    return made


@dataclass(frozen=True, kw_only=True)
class TraceSet:
    """The traces of one job, by rank. Ranks are unique and ascending."""

    ranks: tuple[RankTrace, ...]
    notes: tuple[Note, ...] = ()

    @property
    def world_size(self) -> int | None:
        """As recorded by the traces; None when none of them says."""
        return next((r.meta.world_size for r in self.ranks if r.meta.world_size is not None), None)

    def __len__(self) -> int:
        return len(self.ranks)
