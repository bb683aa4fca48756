"""The recorded history of an allocator: every block from its request to its release and what kind of memory it was, how high
it went, what lived then, and how often it asked the driver.

The history is a ring: its beginning may be lost, its end is the snapshot. So it is counted back from the snapshot.

Kinds are facts where the snapshot names its tensors (`stepscope profile --memory` does). Else they follow from two things
that the history holds: who asked (an optimizer; no Python stack at all, as in autograd's own thread; a module's
constructor; a module's forward pass), and what was asked for in between (a gradient outlives the backward pass, an
activation outlives the forward pass, a temporary neither).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
import numpy as np

from stepscope.records.imported import (
    ACTIVATION,
    GRADIENT,
    KINDS,
    OPTIMIZER,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    MemoryHolder,
    MemoryOverTime,
    MemorySnapshot,
)

_IN_OPTIMIZER, _IN_BACKWARD, _IN_SETUP, _IN_FORWARD, _ELSEWHERE = range(5)

_SETUP = frozenset({
    "__init__", "_apply", "reset_parameters", "load_state_dict", "to_empty", "from_pretrained", "_ddp_init_helper",
    "fully_shard",
})  # fmt: skip
"""Functions inside which parameters and buffers come to be."""

_BUCKETS = "/torch/nn/parallel/distributed.py"
_CHECKED = 1000
"""Number of releases whose stacks are compared with their requests'."""

TORCH_ONLY = "inside torch (no Python frame)"
UNKNOWN_PLACE = "unknown place (allocated before the recorded history)"


_NOWHERE = -1
"""Address of a block whose snapshot does not tell it."""


Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Moment = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]


@dataclass(kw_only=True)
class AllocatorEvent:
    """What the allocator did, as the snapshot's history has it."""

    action: str
    addr: int = 0
    size: Bytes = 0
    time_us: Moment | None = None
    device_free: Bytes | None = None
    frames: list[Any] | None = None
    user_metadata: str | None = None


@dataclass(kw_only=True)
class SegmentPiece:
    """A piece of a segment at the snapshot."""

    size: Bytes
    state: str
    requested_size: Bytes | None = None
    address: int | None = None
    frames: list[Any] | None = None
    history: list[Any] | None = None


@dataclass(slots=True, kw_only=True)
class Life:
    """A block of ``size`` requested bytes. begins, ends: numbers of events; -1: before the history, None: still alive.

    stack: of its request, innermost first; empty where that was not recorded. module: as the job named it.
    """

    size: int
    begins: int
    stack: Sequence[Any]
    address: int
    ends: int | None = None
    kind: str = UNKNOWN
    module: str = ""

    def lives_after(self, event: int) -> bool:
        """Return whether it lives once events up to number ``event`` have happened."""
        return self.begins <= event and (self.ends is None or self.ends > event)


def lives_of(trace: Sequence[AllocatorEvent], live: Sequence[SegmentPiece]) -> list[Life]:
    """Follow every block that the history or the snapshot knows. live: blocks in use at the snapshot."""
    lives: list[Life] = []
    open_: dict[int, Life] = {}
    frees: list[tuple[Life, Sequence[Any]]] = []
    for number, event in enumerate(trace):
        if event.action == "alloc":
            if (lost := open_.get(event.addr)) is not None:
                lost.ends = number
            life = Life(
                size=event.size,
                begins=number,
                stack=event.frames or (),
                address=event.addr,
                module=event.user_metadata or "",
            )
            open_[event.addr] = life
            lives.append(life)
        elif event.action == "free_requested":
            ended = open_.pop(event.addr, None)
            if ended is None:
                ended = Life(size=event.size, begins=-1, stack=(), address=event.addr)
                lives.append(ended)
            ended.ends = number
            frees.append((ended, event.frames or ()))
    _take_stacks_of_frees(frees)
    for block in live:
        lasting = None if block.address is None else open_.pop(block.address, None)
        if lasting is None:
            lasting = Life(
                size=requested(block),
                begins=-1,
                stack=block.frames or (),
                address=_NOWHERE if block.address is None else block.address,
            )
            lives.append(lasting)
        lasting.size = requested(block)
    for lost in open_.values():  # neither released nor there: the snapshot's end is all that is known
        lost.ends = len(trace)
    return lives


def _take_stacks_of_frees(frees: Sequence[tuple[Life, Sequence[Any]]]) -> None:
    """Give blocks without a stack that of their release: with ``context="alloc"`` it is the request's own, with
    ``context="all"`` (the default) the release's."""
    checked = [pair for pair in frees if pair[0].begins >= 0 and pair[0].stack][:_CHECKED]
    if checked and all(_python_frames(life.stack) == _python_frames(stack) for life, stack in checked):
        for life, stack in frees:
            life.stack = life.stack or stack


def requested(block: SegmentPiece) -> int:
    """Return the bytes asked for; snapshots before torch 2.1 only have the rounded size."""
    return block.size if block.requested_size is None else block.requested_size


def judge(lives: Sequence[Life], facts: Mapping[int, tuple[str, str]]) -> None:
    """Give every life its kind and module. facts: address -> (kind, tensor's name) of what lives at the snapshot."""
    stages = _Stages(lives, with_stacks=any(_python_frames(life.stack) for life in lives))
    sizes: set[int] = set()
    for life in lives:
        if life.ends is not None:
            continue
        if (fact := facts.get(life.address)) is not None:
            life.kind, name = fact
            life.module = name.rpartition(".")[0] or life.module
        elif stages.of(life) == _IN_SETUP:
            life.kind = _block_kind(life, stages, sizes, named=bool(facts))
        if life.kind == PARAMETER or life.begins < 0:
            sizes.add(life.size)
    for life in lives:
        if life.ends is not None or life.address not in facts:
            life.kind = _block_kind(life, stages, sizes, named=bool(facts))
        life.module = life.module or call_sites(life.stack)
    _parameters_of_gradients(lives)


def _parameters_of_gradients(lives: Sequence[Life]) -> None:
    """Take lasting blocks from before the history for parameters, where as many have a size as gradients do.

    Where there are more (an optimizer's state has the same sizes), they stay unknown.
    """
    gradients = Counter(life.size for life in lives if life.kind == GRADIENT and life.ends is None)
    older = [life for life in lives if life.kind == UNKNOWN and life.begins < 0 and life.ends is None]
    there = Counter(life.size for life in older)
    for life in older:
        if there[life.size] == gradients[life.size]:
            life.kind = PARAMETER


def _block_kind(life: Life, stages: _Stages, sizes: set[int], *, named: bool) -> str:
    """Judge the kind of a block. sizes: of known parameters. named: all that lives at the snapshot in modules and optimizers
    has its kind already."""
    stage = stages.of(life)
    lasts = life.ends is None
    if not stages.with_stacks or (life.begins < 0 and not life.stack):
        return UNKNOWN
    if stage == _IN_SETUP:
        if not lasts:
            return TEMPORARY
        return GRADIENT if stages.in_buckets(life) else UNKNOWN if named else PARAMETER
    if life.begins < 0:
        return OPTIMIZER if stage == _IN_OPTIMIZER else UNKNOWN
    end = stages.end_of_run(life)
    if life.ends is not None and life.ends < end:
        return TEMPORARY
    if stages.in_buckets(life):
        return GRADIENT
    if stage == _IN_OPTIMIZER:
        return TEMPORARY if named and lasts else OPTIMIZER
    if stage == _IN_BACKWARD:
        if named and lasts:
            return TEMPORARY
        if stages.last <= end:  # nothing was asked for after it: gradients are told by their size
            return UNKNOWN if not sizes else GRADIENT if life.size in sizes else TEMPORARY
        crosses = life.ends is None or stages.next_request(end) < life.ends
        return GRADIENT if crosses or life.size in sizes else TEMPORARY
    passes = stages.backward_passes(life)
    if lasts and passes > 1:
        return UNKNOWN
    if stage == _ELSEWHERE and passes == 0:
        return UNKNOWN if lasts else TEMPORARY
    return ACTIVATION


class _Stages:
    """What the program was doing at each request.

    with_stacks: some request has a Python stack, so that one without tells, too.
    """

    def __init__(self, lives: Sequence[Life], *, with_stacks: bool) -> None:
        self.with_stacks = with_stacks
        self._by_stack: dict[tuple[int, ...], tuple[int, bool]] = {}
        requests = sorted((life.begins, self.of(life)) for life in lives if life.begins >= 0)
        self.numbers = [number for number, _ in requests]
        stages = [stage for _, stage in requests]
        self.last = self.numbers[-1] if requests else -1
        self._ends: list[int] = [0] * len(requests)
        for at in range(len(requests) - 1, -1, -1):
            same = at + 1 < len(requests) and stages[at + 1] == stages[at]
            self._ends[at] = self._ends[at + 1] if same else self.numbers[at]
        first = [at for at, stage in enumerate(stages) if stage == _IN_BACKWARD and (not at or stages[at - 1] != stage)]
        self._backwards = [self.numbers[at] for at in first]

    def of(self, life: Life) -> int:
        return self._stage_and_bucket(life)[0]

    def in_buckets(self, life: Life) -> bool:
        """Return whether DistributedDataParallel asked for it."""
        return self._stage_and_bucket(life)[1]

    def _stage_and_bucket(self, life: Life) -> tuple[int, bool]:
        key = tuple(map(id, life.stack))
        if key not in self._by_stack:
            frames = _python_frames(life.stack)
            self._by_stack[key] = _stage_of_stack(frames), bool(frames) and frames[0][0].endswith(_BUCKETS)
        return self._by_stack[key]

    def end_of_run(self, life: Life) -> int:
        """Return the last of the requests that follow each other in the same stage."""
        return self._ends[bisect_right(self.numbers, life.begins) - 1]

    def next_request(self, number: int) -> float:
        at = bisect_right(self.numbers, number)
        return self.numbers[at] if at < len(self.numbers) else float("inf")

    def backward_passes(self, life: Life) -> int:
        """Count the backward passes that begin while it lives."""
        until = len(self._backwards) if life.ends is None else bisect_right(self._backwards, life.ends)
        return until - bisect_right(self._backwards, life.begins)


def _stage_of_stack(frames: Sequence[_Frame]) -> int:
    """Return the stage of the step that a stack is from: backward, optimizer, forward, setup or something else."""
    if not frames or "/torch/" in frames[-1][0]:  # autograd's thread begins inside torch
        return _IN_BACKWARD
    if any("/torch/optim/" in file for file, _, _ in frames):
        return _IN_OPTIMIZER
    if any(file.endswith(_ENGINE) for file, _, _ in frames):
        return _IN_BACKWARD
    names = {name for _, _, name in frames}
    if "_call_impl" in names:
        return _IN_FORWARD
    return _IN_SETUP if names & _SETUP else _ELSEWHERE


_ENGINE = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
_Frame = tuple[str, object, str]
"""A Python frame: file, line, function."""


def _python_frames(stack: Sequence[Any]) -> list[_Frame]:
    """Return the Python frames of a stack, innermost first."""
    return [
        (str(f["filename"]).replace("\\", "/"), f.get("line", "?"), str(f.get("name", "")))
        for f in stack
        if isinstance(f, Mapping) and str(f.get("filename", "")).endswith(".py")
    ]


def place(stack: Sequence[Any]) -> str:
    """Name the innermost Python frame outside torch, its file with the folder it is in: ``model.py:120 forward``."""
    frames = _python_frames(stack)
    if not frames:
        return TORCH_ONLY if stack else UNKNOWN_PLACE
    file, line, name = next((frame for frame in frames if "/torch/" not in frame[0]), frames[0])
    return f"{_short_path(file)}:{line} {name}".rstrip()


def call_sites(stack: Sequence[Any]) -> str:
    """Name where the user's innermost modules were called: ``model.py:253 > model.py:382``; empty outside of modules."""
    frames = _python_frames(stack)
    sites = [
        f"{_short_path(file)}:{line}"
        for (inner_file, _, inner), (file, line, _) in pairwise(frames)
        if inner in ("_call_impl", "_wrapped_call_impl")
        and inner_file.endswith("/torch/nn/modules/module.py")
        and "/torch/" not in file
    ]
    return " > ".join(reversed(sites[:2]))


def _short_path(file: str) -> str:
    return "/".join(PurePosixPath(file).parts[-2:])


def alive(lives: Iterable[Life], event: int) -> list[Life]:
    """Return the blocks that live once events up to number ``event`` have happened."""
    return [life for life in lives if life.lives_after(event)]


_GROWS = frozenset(["segment_alloc", "segment_map"])
_SHRINKS = frozenset(["segment_free", "segment_unmap"])
SLICES = 200
HOLDERS = 20
"""Places in the code that are kept, largest first."""


def with_history(record: MemorySnapshot, trace: Sequence[AllocatorEvent], lives: Sequence[Life]) -> MemorySnapshot:
    """Add to ``record``, of one device at the snapshot, what its history tells. lives: judged, of this trace.

    Late is the second half of the requests, with what lies between them.
    """
    reserved = most_reserved = record.segment_bytes
    failed: list[tuple[AllocatorEvent, int]] = []  # the last one first, and what was reserved then
    for event in reversed(trace):
        if event.action == "oom":
            failed.append((event, reserved))
        elif event.action in _GROWS:
            reserved -= event.size
        elif event.action in _SHRINKS:
            reserved += event.size
        most_reserved = max(most_reserved, reserved)
    last, reserved_then = failed[0] if failed else (None, 0)
    driver_free = None if last is None else last.device_free
    capacity = record.capacity_bytes
    if capacity is None and driver_free is not None:
        capacity = reserved_then + driver_free
    times = [event.time_us for event in trace if event.time_us is not None]
    levels = _levels_by_kind(lives, len(trace))
    total = levels.sum(axis=1)
    peak = int(np.argmax(total))  # events before it
    at_peak = alive(lives, peak - 1)
    late = trace[_half_of_requests(trace) :]
    return replace(
        record,
        peak_requested_bytes=int(total[peak]),
        peak_reserved_bytes=most_reserved,
        history_complete=not any(life.begins < 0 for life in lives),
        history_ns=(max(times) - min(times)) * 1000 if times else None,
        capacity_bytes=capacity,
        oom_events=len(failed),
        oom_request_bytes=None if last is None else last.size,
        oom_driver_free_bytes=driver_free,
        driver_allocations=_event_count(trace, _GROWS),
        driver_frees=_event_count(trace, _SHRINKS),
        retries=_retry_count(trace),
        late_allocations=_event_count(late, ("alloc",)),
        late_driver_allocations=_event_count(late, _GROWS),
        late_driver_frees=_event_count(late, _SHRINKS),
        late_retries=_retry_count(late),
        peak_holders=holders(at_peak, lambda life: place(life.stack)),
        peak_modules=holders([life for life in at_peak if life.module], lambda life: life.module),
        peak_kinds=by_kind(at_peak),
        over_time=_memory_over_time(trace, levels, total),
    )


def holders(lives: Sequence[Life], where: Callable[[Life], str]) -> tuple[MemoryHolder, ...]:
    """Sum bytes by place and kind, the :data:`HOLDERS` largest."""
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    blocks: dict[tuple[str, str], int] = defaultdict(int)
    for life in lives:
        key = where(life), life.kind
        sizes[key] += life.size
        blocks[key] += 1
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))[:HOLDERS]
    return tuple(MemoryHolder(where=k[0], kind=k[1], size_bytes=sizes[k], blocks=blocks[k]) for k in largest)


def by_kind(lives: Sequence[Life]) -> tuple[tuple[str, int], ...]:
    """Sum the bytes of every kind that holds some."""
    sizes = {kind: sum(life.size for life in lives if life.kind == kind) for kind in KINDS}
    return tuple((kind, size) for kind, size in sizes.items() if size)


def _levels_by_kind(lives: Sequence[Life], events: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return bytes by kind, before the first event and after each."""
    changes = np.zeros((events + 1, len(KINDS)), dtype=np.int64)
    for life in lives:
        kind = KINDS.index(life.kind)
        changes[life.begins + 1, kind] += life.size
        if life.ends is not None and life.ends < events:
            changes[life.ends + 1, kind] -= life.size
    return np.cumsum(changes, axis=0)


def _memory_over_time(
    trace: Sequence[AllocatorEvent],
    levels: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    total: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> MemoryOverTime:
    """Find the highest moment of each slice of the history: of time where it has times, else of events."""
    times = [event.time_us for event in trace]
    timed = all(time is not None and time >= 0 for time in times) and len(set(times)) > 1
    at = np.maximum.accumulate(np.array(times if timed else range(len(trace)), dtype=np.int64))
    at = np.concatenate([at[:1], at]) - at[0]  # what lives before the first event stands at its time
    slice_ = at * SLICES // (int(at[-1]) + 1)
    order = np.lexsort((total, slice_))  # the highest of each slice is its last
    chosen = order[np.flatnonzero(np.append(slice_[order][1:] != slice_[order][:-1], True))]
    return MemoryOverTime(
        times_ns=tuple((at[chosen] * 1000).tolist()) if timed else None,
        events=tuple(chosen.tolist()),
        bytes_by_kind=tuple(
            (kind, tuple(levels[chosen, n].tolist())) for n, kind in enumerate(KINDS) if levels[:, n].any()
        ),
    )


def _half_of_requests(trace: Sequence[AllocatorEvent]) -> int:
    """Count events up to and with the request in the middle: growing a pool takes more events than using it."""
    requests = [number for number, event in enumerate(trace) if event.action == "alloc"]
    return requests[len(requests) // 2 - 1] + 1 if len(requests) > 1 else len(trace)


def _event_count(trace: Sequence[AllocatorEvent], actions: Container[str]) -> int:
    return sum(event.action in actions for event in trace)


def _retry_count(trace: Sequence[AllocatorEvent]) -> int:
    """Count how often segments were given back directly before one was asked for."""
    done = [event.action for event in trace if event.action != "oom"]
    return sum(before in _SHRINKS and action in _GROWS for before, action in pairwise(done))
