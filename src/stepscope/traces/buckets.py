"""Gradient buckets: the collectives that hooks launch from inside the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_collectives import BucketRow, RankCollective
from stepscope.traces.activity import Activity
from stepscope.traces.collective_names import DTYPE_BYTES
from stepscope.traces.events import NONE, Category, Events, RankTrace
from stepscope.traces.links import Launches, computed_before
from stepscope.traces.nesting import Nest, nest

Ints = NDArray[np.int64]

_HOOKED = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_DDP = "DistributedDataParallel"
_REDUCTIONS = ("all_reduce", "reduce_scatter", "all_to_all", "all_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hook:
    """One gradient becoming ready: [start, end) of the engine's node, the end of its accumulation, its shape."""

    start: int
    end: int
    done: int
    shape: str | None


def bucket_rows(
    trace: RankTrace, activity: Activity, launches: Launches, collectives: Iterable[RankCollective]
) -> tuple[BucketRow, ...]:
    """The rank's buckets in order of launch; empty where no collective was launched by a gradient's hook.

    A collective belongs here when the host called it while the autograd engine was inside ``AccumulateGrad``, where
    DistributedDataParallel and gradient hooks launch theirs.
    """
    events = trace.events
    hooks = _hooks(events)
    if not hooks:
        return ()
    starts = np.array([h.start for h in hooks], dtype=np.int64)
    wrapper = "ddp" if any(n.startswith((_DDP, "torch.distributed.ddp")) for n in events.names) else "hooks"
    mine: list[tuple[RankCollective, int, int]] = []  # with its launch and the hook that made it
    for each in collectives:
        if each.launch_ns is None or each.op not in _REDUCTIONS:
            continue
        at = int(np.searchsorted(starts, each.launch_ns, side="right")) - 1
        if at >= 0 and each.launch_ns < hooks[at].end:
            mine.append((each, each.launch_ns, at))
    mine.sort(key=lambda m: m[1])
    ready = computed_before(events, activity, launches, np.array([m[1] for m in mine], dtype=np.int64)).tolist()
    copied = _Copies(events)
    rows: list[BucketRow] = []
    index, previous_step, previous_hook = -1, None, -1
    for i, (each, launch, at) in enumerate(mine):
        index = index + 1 if each.step == previous_step else 0
        elements = None
        if each.size_bytes is not None and each.dtype in DTYPE_BYTES:
            elements = each.size_bytes // DTYPE_BYTES[each.dtype]
        # A step's last bucket leaves with its last gradient: what is ready after it belongs to the next one.
        members, source, why = _members(elements, copied, hooks[previous_hook + 1 : at + 1], launch)
        done = hooks[at].done if activity.source != "device" else None if ready[i] == NONE else ready[i]
        rows.append(
            BucketRow(
                rank=trace.rank,
                step=each.step,
                index=index,
                wrapper=wrapper,
                op=each.op,
                dtype=each.dtype,
                size_bytes=each.size_bytes,
                members=members,
                members_source=source,
                members_unavailable=why,
                ready_ns=done,
                launch_ns=launch,
                start_ns=each.start_ns,
                end_ns=each.end_ns,
                waited_ns=max(0, each.start_ns - max(launch, launch if done is None else done)),
                exposed_ns=each.exposed_ns,
            )
        )
        previous_step, previous_hook = each.step, at
    return tuple(rows)


def _hooks(events: Events) -> list[_Hook]:
    codes = {n: c for c, n in enumerate(events.names) if n in (_HOOKED, _ACCUMULATE)}
    if _HOOKED not in codes:
        return []
    chosen = np.flatnonzero((events.category == Category.CPU_OP) & np.isin(events.name, list(codes.values())))
    tree: Nest = nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])
    outer = np.flatnonzero(events.name[tree.index] == codes[_HOOKED])
    inner_of = {int(tree.parent[i]): int(i) for i in np.flatnonzero(tree.parent != NONE).tolist()}
    hooks = []
    for i in outer.tolist():
        inner = inner_of.get(i)
        shape = None
        if inner is not None and (code := int(events.shape[tree.index[inner]])) != NONE:
            shape = _first_shape(events.shapes[code].dims)
        done = int(tree.ends[i] if inner is None else tree.ends[inner])
        hooks.append(_Hook(start=int(tree.starts[i]), end=int(tree.ends[i]), done=done, shape=shape))
    return sorted(hooks, key=lambda h: h.start)


class _Copies:
    """DDP's copies out of its buckets, one per gradient, bucket after bucket in the order of their launches."""

    def __init__(self, events: Events) -> None:
        codes = [c for c, n in enumerate(events.names) if n == _COPY_OUT]
        chosen = np.flatnonzero((events.category == Category.CPU_OP) & np.isin(events.name, codes))
        chosen = chosen[np.argsort(events.ts_ns[chosen], kind="stable")]
        self._shapes = [
            _first_shape(events.shapes[c].dims) if c != NONE else None for c in events.shape[chosen].tolist()
        ]
        self._times = events.ts_ns[chosen]
        self._next = 0

    def take(self, elements: int, *, after: int) -> tuple[str, ...] | None:
        """The next copies that together have so many elements; None (and none taken) where they do not add up."""
        at = max(self._next, int(np.searchsorted(self._times, after)))
        begin, left = at, elements
        while left > 0 and at < len(self._shapes) and (shape := self._shapes[at]) is not None:
            left -= _elements(shape)
            at += 1
        if left != 0 or at == begin:
            return None
        self._next = at
        return tuple(s for s in self._shapes[begin:at] if s is not None)


def _members(
    elements: int | None, copied: _Copies, since: list[_Hook], launch: int
) -> tuple[tuple[str, ...] | None, str | None, str | None]:
    if elements is None:
        return None, None, "the bucket's elements are not recorded"
    if (taken := copied.take(elements, after=launch)) is not None:
        return taken, "copies", None
    shapes = [h.shape for h in since]
    known = [s for s in shapes if s is not None]
    if not known or len(known) < len(shapes):
        return None, None, "the shapes of gradients are not recorded (record_shapes=True records them)"
    if sum(_elements(s) for s in known) == elements:
        return tuple(known), "accumulated", None
    return None, None, "the gradients that became ready since the previous bucket do not add up to its size"


def _first_shape(dims: str) -> str | None:
    try:
        first = msgspec.json.decode(dims)[0]
    except (msgspec.DecodeError, IndexError, TypeError, KeyError):
        return None
    is_shape = isinstance(first, list) and all(isinstance(n, int) for n in first)
    return str(first) if is_shape else None


def _elements(shape: str) -> int:
    return math.prod(msgspec.json.decode(shape, type=list[int]))
