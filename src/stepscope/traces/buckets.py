"""Gradient buckets: the collectives that hooks launch from inside the backward pass.

How many backward passes each step runs, and what each of them reduces.
"""

from __future__ import annotations

import math
from collections.abc import Container

import msgspec
import numpy as np

from stepscope.core.dataclass import record
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import BucketRow, RankCollective
from stepscope.records.trace_rules import BackwardPasses, StepPasses
from stepscope.stats import spans
from stepscope.traces.activity import activity_of
from stepscope.traces.collective_calls import REDUCTIONS
from stepscope.traces.collectives import communication
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, column
from stepscope.traces.groups import group_name
from stepscope.traces.launches import computed_before
from stepscope.traces.marks import Marks, marks_of
from stepscope.traces.nesting import Nest, nest_events
from stepscope.traces.passes import autograd_nodes, with_nodes

_HOOKED = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_DDP = "DistributedDataParallel"
_LAUNCHED = (*REDUCTIONS, "all_to_all", "all_gather")


@record
class _Hook:
    """One gradient becoming ready: [start, end) of the engine's node, the end of its accumulation, its shape."""

    start: int
    end: int
    done: int
    shape: str | None


def bucket_rows(view: RankView) -> tuple[BucketRow, ...]:
    """The rank's buckets in order of launch; empty where no collective was launched by a gradient's hook.

    A collective belongs here when the host called it while the autograd engine was inside ``AccumulateGrad``, where
    DistributedDataParallel and gradient hooks launch theirs.
    """
    events = view.events
    hooks = _gradient_hooks(events)
    if not hooks:
        return ()
    starts = column(hooks, "start")
    wrapper = "ddp" if any(n.startswith((_DDP, "torch.distributed.ddp")) for n in events.names) else "hooks"
    buckets: list[tuple[RankCollective, int, int]] = []  # with its launch and the hook that made it
    for collective in communication(view).collectives:
        if collective.launch_ns is None or collective.op not in _LAUNCHED:
            continue
        at = int(np.searchsorted(starts, collective.launch_ns, side="right")) - 1
        if at >= 0 and collective.launch_ns < hooks[at].end:
            buckets.append((collective, collective.launch_ns, at))
    buckets.sort(key=lambda m: m[1])
    ready = computed_before(view, np.array([m[1] for m in buckets], dtype=np.int64)).tolist()
    copied = _Copies(events)
    rows: list[BucketRow] = []
    index, previous_step, previous_hook = -1, None, -1
    for i, (collective, launch, at) in enumerate(buckets):
        index = index + 1 if collective.step == previous_step else 0
        elements = None
        if collective.size_bytes is not None and collective.dtype in DTYPE_BYTES:
            elements = collective.size_bytes // DTYPE_BYTES[collective.dtype]
        # A step's last bucket leaves with its last gradient: what is ready after it belongs to the next one.
        members, source, why = _bucket_members(elements, copied, hooks[previous_hook + 1 : at + 1], launch)
        done = hooks[at].done if activity_of(view).source != "device" else None if ready[i] == NONE else ready[i]
        rows.append(
            BucketRow(
                rank=view.rank,
                step=collective.step,
                index=index,
                wrapper=wrapper,
                op=collective.op,
                dtype=collective.dtype,
                size_bytes=collective.size_bytes,
                members=members,
                members_source=source,
                members_unavailable=why,
                ready_ns=done,
                launch_ns=launch,
                start_ns=collective.start_ns,
                end_ns=collective.end_ns,
                waited_ns=max(0, collective.start_ns - max(launch, launch if done is None else done)),
                exposed_ns=collective.exposed_ns,
            )
        )
        previous_step, previous_hook = collective.step, at
    return tuple(rows)


def _gradient_hooks(events: Events) -> list[_Hook]:
    """Return the calls of gradient hooks in order of time, each with the shape of the gradient that it accumulates."""
    codes = {n: c for c, n in enumerate(events.names) if n in (_HOOKED, _ACCUMULATE)}
    if _HOOKED not in codes:
        return []
    chosen = np.flatnonzero((events.category == Category.CPU_OP) & np.isin(events.name, list(codes.values())))
    tree: Nest = nest_events(events, chosen)
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
        chosen = events.by_start((events.category == Category.CPU_OP) & np.isin(events.name, codes))
        self._shapes = [
            _first_shape(events.shapes[c].dims) if c != NONE else None for c in events.shape[chosen].tolist()
        ]
        self._times = events.ts_ns[chosen]
        self._next = 0

    def take(self, elements: int, *, after: int) -> tuple[str, ...] | None:
        """Take the next copies that together have so many elements; None, and none is taken, where they do not add up."""
        at = max(self._next, int(np.searchsorted(self._times, after)))
        begin, left = at, elements
        while left > 0 and at < len(self._shapes) and (shape := self._shapes[at]) is not None:
            left -= _element_count(shape)
            at += 1
        if left != 0 or at == begin:
            return None
        self._next = at
        return tuple(s for s in self._shapes[begin:at] if s is not None)


def _bucket_members(
    elements: int | None, copied: _Copies, since: list[_Hook], launch: int
) -> tuple[tuple[str, ...] | None, str | None, str | None]:
    """Return the gradients of a bucket, how they are known, or why they are not."""
    if elements is None:
        return None, None, "the bucket's elements are not recorded"
    if (taken := copied.take(elements, after=launch)) is not None:
        return taken, "copies", None
    shapes = [h.shape for h in since]
    recorded = [s for s in shapes if s is not None]
    if not recorded or len(recorded) < len(shapes):
        return None, None, "the shapes of gradients are not recorded (record_shapes=True records them)"
    if sum(_element_count(s) for s in recorded) == elements:
        return tuple(recorded), "accumulated", None
    return None, None, "the gradients that became ready since the previous bucket do not add up to its size"


def _first_shape(dims: str) -> str | None:
    """Return the shape of the first input; None where it is not recorded."""
    try:
        first = msgspec.json.decode(dims)[0]
    except (msgspec.DecodeError, IndexError, TypeError, KeyError):
        return None
    is_shape = isinstance(first, list) and all(isinstance(n, int) for n in first)
    return str(first) if is_shape else None


def _element_count(shape: str) -> int:
    return math.prod(msgspec.json.decode(shape, type=list[int]))


_OPTIMIZER = ("Optimizer.step#", "stepscope.optimizer")


def backward_passes(view: RankView, *, layers: Container[str] = ()) -> BackwardPasses | None:
    """The passes of every marked step; None without steps, or without the autograd engine's numbers. layers: names of
    groups whose reductions are of layers' results, not of gradients."""
    events, marks = view.events, marks_of(view)
    begins = pass_starts(events)
    if not len(marks) or not len(begins):
        return None
    ends = _pass_ends_ns(events, begins, marks)
    step = spans.place(marks.starts, marks.ends, begins)
    chosen = [c for c in communication(view).collectives if c.op in REDUCTIONS and group_name(c) not in layers]
    called = column(chosen, "called_ns")
    owner = spans.place(begins, ends, called)
    inside = owner >= 0
    counts = np.bincount(owner[inside], minlength=len(begins))
    sizes: list[int | None] = [0] * len(begins)
    for c, at, in_pass in zip(chosen, owner.tolist(), inside.tolist(), strict=True):
        before = sizes[at]
        if in_pass:
            sizes[at] = None if before is None or c.size_bytes is None else before + c.size_bytes
    optimized = _optimizer_steps(events)
    of_step = spans.place(marks.starts, marks.ends, optimized)
    return BackwardPasses(
        rank=view.rank,
        steps=tuple(
            StepPasses(
                step=int(number),
                backward_passes=int((step == i).sum()),
                optimizer_steps=int((of_step == i).sum()),
                reductions=tuple(counts[step == i].tolist()),
                reduced_bytes=tuple(sizes[at] for at in np.flatnonzero(step == i).tolist()),
            )
            for i, number in enumerate(marks.numbers.tolist())
        ),
    )


def pass_starts(events: Events) -> Ints:
    """Return when each run of the autograd engine begins: within one, nodes come in falling order of their numbers. Runs
    inside a node (recomputation) are part of it."""
    nodes = np.flatnonzero(autograd_nodes(events) & (events.sequence >= 0) & (events.forward_thread > 0))
    if not len(nodes):
        return np.empty(0, dtype=np.int64)
    main = np.bincount(events.thread[nodes]).argmax()
    nodes = nodes[events.thread[nodes] == main]
    nodes = nodes[np.lexsort((-events.dur_ns[nodes], events.ts_ns[nodes]))]
    outer = np.maximum.accumulate(events.end_ns[nodes])
    top = np.ones(len(nodes), dtype=bool)
    top[1:] = events.ts_ns[nodes[1:]] >= outer[:-1]
    nodes = nodes[top]
    number = events.sequence[nodes]
    starts: Ints = events.ts_ns[nodes[np.concatenate([[True], number[1:] > number[:-1]])]]
    return starts


def _pass_ends_ns(events: Events, begins: Ints, marks: Marks) -> Ints:
    """Return where each pass ends for what is launched: at the next pass, forward operator, optimizer, or step."""
    bounds = np.sort(
        np.concatenate([begins, marks.starts, marks.ends, _optimizer_steps(events), events.ts_ns[with_nodes(events)]])
    )
    at = np.searchsorted(bounds, begins, side="right")
    return np.where(at < len(bounds), bounds[np.minimum(at, len(bounds) - 1)], np.iinfo(np.int64).max)


def _optimizer_steps(events: Events) -> Ints:
    """Return when each step of an optimizer begins; one inside another optimizer's step belongs to that one."""
    marks = np.flatnonzero(events.of(Category.USER_ANNOTATION, Category.CPU_OP) & events.begins(_OPTIMIZER))
    return events.spans(marks).starts
