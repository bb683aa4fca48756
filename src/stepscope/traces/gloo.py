"""gloo's collectives: the spans of its worker threads, matched with the c10d calls that queued them."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace

import numpy as np

from stepscope.core.dataclass import dataclass, record
from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.traces.collective_calls import (
    Identity,
    Inputs,
    direction_of,
    inputs_of,
    op_named,
    ranks_by_shapes,
    sized,
    whole_of_launch,
    whole_of_span,
)
from stepscope.traces.events import NONE, Category, Events, Ints
from stepscope.traces.groups import Groups

_ALIKE = {"all_to_all_v": "all_to_all"}
_ANY, _UNSIZED = "any size", "size not recorded"
_WORKERS = 2  # threads that ProcessGroupGloo starts for a group, unless its options say otherwise


@record
class GlooCall:
    """One collective on gloo: from its (first) span's start to its (last) span's end."""

    identity: Identity
    start_ns: int
    end_ns: int
    launch_ns: int | None


@dataclass(slots=True, kw_only=True)
class _Launch:
    op: str
    inputs: Inputs | None
    ts_ns: int
    spans_left: int


@record
class _Span:
    name: str
    op: str
    inputs: Inputs | None
    start_ns: int
    end_ns: int
    group: CollectiveGroup | None


def gloo_calls(events: Events, groups: Groups) -> list[GlooCall]:
    """All gloo collectives of a rank in order of start.

    gloo works its queue off in order, so that each span belongs to the oldest call of its kind and size that has
    not begun. reduce_scatter runs as ``gloo:all_reduce`` of the whole input; its list form as one all_reduce per
    rank, which count as one collective here. O(n log n).
    """
    spans = _gloo_spans(events, groups)
    waiting: dict[tuple[str, int | str], deque[_Launch]] = defaultdict(deque)
    launches = deque(_c10d_launches(events, groups))
    calls: list[GlooCall] = []
    open_at: dict[int, int] = {}  # id of a list reduce_scatter's launch -> its place in calls
    for span in spans:
        while launches and launches[0].ts_ns <= span.start_ns:
            launch = launches.popleft()
            op, size = _shown_as(launch)
            waiting[op, _UNSIZED if size is None else size].append(launch)
            waiting[op, _ANY].append(launch)
        caller = _oldest_launch(waiting, span)
        if caller is None:
            calls.append(_gloo_call(span, None))
            continue
        caller.spans_left -= 1
        if id(caller) in open_at:
            at = open_at[id(caller)]
            calls[at] = replace(calls[at], end_ns=max(calls[at].end_ns, span.end_ns))
            continue
        if caller.spans_left > 0:
            open_at[id(caller)] = len(calls)
        calls.append(_gloo_call(span, caller))
    return calls


def _oldest_launch(waiting: dict[tuple[str, int | str], deque[_Launch]], span: _Span) -> _Launch | None:
    """Return the oldest launch of the span's operation and size, or of unknown size, that still lacks spans; None: none."""
    size = span.inputs.first if span.inputs else None
    heads: list[_Launch] = []
    for key in (_ANY,) if size is None else (size, _UNSIZED):
        queue = waiting[span.op, key]
        while queue and queue[0].spans_left == 0:
            queue.popleft()
        if queue:
            heads.append(queue[0])
    return min(heads, key=lambda launch: launch.ts_ns, default=None)


def _shown_as(launch: _Launch) -> tuple[str, int | None]:
    """The op of the span that a launch becomes, and the elements of the span's first input; None: not recorded."""
    inputs, op = launch.inputs, _ALIKE.get(launch.op, launch.op)
    if op == "reduce_scatter":
        op = "all_reduce"
        if inputs is not None and inputs.second is not None:
            return op, inputs.second
    if inputs is None:
        return op, None
    return op, inputs.second if op in ("all_gather", "gather", "all_to_all") else inputs.first


def _c10d_launches(events: Events, groups: Groups) -> list[_Launch]:
    """Return the host's calls of collectives in order, each with the number of spans that it makes."""
    named = [op_named(n) if n.startswith("c10d::") else None for n in events.names]
    chosen = np.array([op is not None for op in named], dtype=bool)
    if not chosen.any():
        return []
    indices = events.by_start(chosen[events.name] & (events.category == Category.CPU_OP))
    result = []
    for i in indices.tolist():
        op = named[int(events.name[i])] or ""
        inputs = _event_inputs(events, i)
        parts = 1
        if op == "reduce_scatter" and inputs is not None and inputs.second is None:
            only = groups.on_gloo[0] if len(groups.on_gloo) == 1 else None
            parts = (only.size if only else groups.world_size) or 1
        result.append(_Launch(op=op, inputs=inputs, ts_ns=int(events.ts_ns[i]), spans_left=parts))
    return result


def _gloo_spans(events: Events, groups: Groups) -> list[_Span]:
    """Return Gloo's own spans in order, each with the group of its thread where that is known."""
    ops = [op_named(n) if n.startswith("gloo:") else None for n in events.names]
    chosen = np.array([op is not None for op in ops], dtype=bool)
    if not chosen.any():
        return []
    host = events.of(Category.USER_ANNOTATION, Category.CPU_OP)
    indices = events.by_start(chosen[events.name] & host)
    by_thread = _group_of_threads(events, indices, ops, groups)
    return [
        _Span(
            name=events.name_of(i),
            op=ops[int(events.name[i])] or "",
            inputs=_event_inputs(events, i),
            start_ns=int(events.ts_ns[i]),
            end_ns=int(events.end_ns[i]),
            group=by_thread.get(int(events.thread[i]), groups.only),
        )
        for i in indices.tolist()
    ]


def _group_of_threads(
    events: Events, indices: Ints, ops: list[str | None], groups: Groups
) -> dict[int, CollectiveGroup]:
    """Return which group each worker thread serves, where every group's workers are there: each group starts its two when it
    is created, so that thread ids in ascending order are the groups in pairs. Where a worker is missing, as of a group that
    called nothing, the others may be of any: a busy machine leaves gaps between the ids of one group, too."""
    workers: dict[int, int] = {}
    for i in indices.tolist():
        if ops[int(events.name[i])] != "send_recv":  # these run on the caller's own thread
            tid = events.threads[int(events.thread[i])][1]
            if tid.isdigit():
                workers[int(tid)] = int(events.thread[i])
    if len(workers) != _WORKERS * len(groups.on_gloo):
        return {}
    return {workers[tid]: groups.on_gloo[at // _WORKERS] for at, tid in enumerate(sorted(workers))}


def _event_inputs(events: Events, i: int) -> Inputs | None:
    shape = int(events.shape[i])
    return None if shape == NONE else inputs_of(events.shapes[shape])


def _gloo_call(span: _Span, launch: _Launch | None) -> GlooCall:
    """Return one call: operation, size and group from the span and from its launch, where one is known."""
    op = launch.op if launch else span.op
    inputs = launch.inputs if launch else None
    group, ranks = span.group, span.group.size if span.group else None
    by_shapes = ranks_by_shapes(op, (inputs.first, inputs.second)) if inputs else None
    if by_shapes is not None and by_shapes != ranks:
        group, ranks = (group if ranks is None else None), by_shapes
    dtype = (span.inputs.dtype if span.inputs else None) or (inputs.dtype if inputs else None)
    elements = whole_of_launch(op, inputs, ranks) if inputs else None
    if elements is None and span.inputs is not None:
        elements = whole_of_span(op, span.inputs, ranks)
    identity = Identity(
        op=op,
        op_source="launch" if launch else "kernel_name",
        kernel=span.name,
        dtype=None if op == "barrier" else dtype,
        size_bytes=0 if op == "barrier" else sized(elements, dtype),
        group=group,
        group_size=ranks,
        direction=direction_of(span.name) if op == "send_recv" else None,
    )
    return GlooCall(
        identity=identity, start_ns=span.start_ns, end_ns=span.end_ns, launch_ns=launch.ts_ns if launch else None
    )
