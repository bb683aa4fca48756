"""How many backward passes each step runs, and what each of them reduces."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import BackwardPasses, StepPasses
from stepscope.stats import spans
from stepscope.traces.events import Category, Events, RankTrace
from stepscope.traces.host_marks import Marks, step_marks
from stepscope.traces.passes import AUTOGRAD, with_nodes

Ints = NDArray[np.int64]

_REDUCTIONS = ("all_reduce", "reduce_scatter")
_OPTIMIZER = ("Optimizer.step#", "stepscope.optimizer")


def backward_passes(
    trace: RankTrace, collectives: Sequence[RankCollective], *, layers: Container[str] = ()
) -> BackwardPasses | None:
    """The passes of every marked step; None without steps, or without the autograd engine's numbers. layers: names of
    groups whose reductions are of layers' results, not of gradients."""
    events = trace.events
    marks = step_marks(events)
    begins = pass_starts(events)
    if not len(marks) or not len(begins):
        return None
    ends = _until(events, begins, marks)
    step = _step_of(marks, begins)
    chosen = [c for c in collectives if c.op in _REDUCTIONS and (c.group.name if c.group else "") not in layers]
    called = np.array([c.start_ns if c.launch_ns is None else c.launch_ns for c in chosen], dtype=np.int64)
    owner = np.searchsorted(begins, called, side="right") - 1
    inside = (owner >= 0) & (called < ends[np.maximum(owner, 0)]) if len(called) else np.zeros(0, dtype=bool)
    counts = np.bincount(owner[inside], minlength=len(begins))
    sizes: list[int | None] = [0] * len(begins)
    for c, at, mine in zip(chosen, owner.tolist(), inside.tolist(), strict=True):
        before = sizes[at]
        if mine:
            sizes[at] = None if before is None or c.size_bytes is None else before + c.size_bytes
    optimized = _optimizer_steps(events)
    of_step = _step_of(marks, optimized)
    return BackwardPasses(
        rank=trace.rank,
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
    """When each run of the autograd engine begins: within one, nodes come in falling order of their numbers. Runs inside a
    node (recomputation) are part of it."""
    nodes = np.flatnonzero(
        (events.category == Category.CPU_OP)
        & events.named(lambda n: n.startswith(AUTOGRAD))
        & (events.sequence >= 0)
        & (events.forward_thread > 0)
    )
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
    found: Ints = events.ts_ns[nodes[np.concatenate([[True], number[1:] > number[:-1]])]]
    return found


def _until(events: Events, begins: Ints, marks: Marks) -> Ints:
    """Until when what is launched belongs to each pass: the next one, the next forward operator, optimizer, or step."""
    bounds = np.sort(
        np.concatenate([begins, marks.starts, marks.ends, _optimizer_steps(events), events.ts_ns[with_nodes(events)]])
    )
    at = np.searchsorted(bounds, begins, side="right")
    return np.where(at < len(bounds), bounds[np.minimum(at, len(bounds) - 1)], np.iinfo(np.int64).max)


def _optimizer_steps(events: Events) -> Ints:
    """When each step of an optimizer begins; one inside another's is the other's."""
    marks = np.flatnonzero(
        np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))
        & events.named(lambda n: n.startswith(_OPTIMIZER))
    )
    return spans.union(events.ts_ns[marks], events.end_ns[marks]).starts


def _step_of(marks: Marks, times: Ints) -> Ints:
    place = np.searchsorted(marks.starts, times, side="right") - 1
    inside = (place >= 0) & (times < marks.ends[np.maximum(place, 0)])
    return np.where(inside, place, -1)
