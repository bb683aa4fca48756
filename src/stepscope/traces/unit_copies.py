"""Copies that sharding itself makes around its collectives, and how much of them no computation hides."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_rules import UnitCopies
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.classify import Work
from stepscope.traces.copies import copy_kind
from stepscope.traces.events import Category, Events
from stepscope.traces.links import Launches
from stepscope.traces.steps import StepWindows

Ints = NDArray[np.int64]

_MARKS = {
    re.compile(r"FSDP::all_gather_copy_out\b|fsdp::split_with_sizes_copy"): "copy-out of gathered parameters",
    re.compile(r"FSDP::all_gather( \(|$)|fsdp::all_gather_copy_in"): "copy-in of shards to gather",
    re.compile(r"FSDP::post_backward_reduce\b|fsdp::chunk_cat"): "copy-in of gradients to reduce",
    re.compile(r"FullyShardedDataParallel\._(pre_forward|pre_backward_hook|post_backward_hook)"): "",
}
"""How names of host ranges begin (torch.distributed.fsdp 2.4 to 2.13), and what kernels launched there copy; of FSDP1,
whose hooks also compute, memory copies alone."""

_DIRECTIONS = {"HtoD": "parameters to the device", "DtoH": "gradients to the host"}
"""With parameters kept in host memory."""


def unit_copies(events: Events, activity: Activity, launches: Launches, windows: StepWindows) -> tuple[UnitCopies, ...]:
    """Those of the steps (without marks: of the window) by kind, longest exposed first.

    Exposed: kernels under no other computation, memory copies under no other work at all, as in the budget.
    """
    indices, work = activity.indices, activity.work
    starts, ends = events.ts_ns[indices], events.end_ns[indices]
    kinds = _kinds(events, activity, np.where(launches.known, events.ts_ns[np.maximum(launches.launch, 0)], -1))
    if len(windows.edges):
        kinds[(starts < windows.edges[0]) | (starts >= windows.edges[-1])] = ""
    copies = kinds != ""
    if not copies.any():
        return ()
    others = (work == Work.COMPUTE) & ~copies
    hidden_by = {
        Work.COMPUTE: spans.union(starts[others], ends[others]),
        Work.MEMORY: spans.join(activity.compute, activity.comm),
    }
    rows = []
    for kind in sorted(set(kinds[copies])):
        mine = kinds == kind
        exposed = spans.EMPTY
        for of, hides in hidden_by.items():
            these = mine & (work == of)
            exposed = spans.join(exposed, spans.subtract(spans.union(starts[these], ends[these]), hides))
        longest = int(np.argmax(np.where(mine, ends - starts, -1)))
        rows.append(
            UnitCopies(
                kind=kind,
                calls=int(mine.sum()),
                busy_ns=spans.union(starts[mine], ends[mine]).measure,
                exposed_ns=exposed.measure,
                longest_ns=(int(starts[longest]), int(ends[longest])),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.exposed_ns))


def _kinds(events: Events, activity: Activity, called: Ints) -> NDArray[np.object_]:
    """What each event of ``activity`` copies, by where its launch was ``called``; "" for what is no copy of a unit."""
    host = np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))
    kinds = np.full(len(called), "", dtype=object)
    for mark, kernels_copy in _MARKS.items():
        ranges = host & events.named(lambda name, begins=mark.match: begins(name) is not None)  # type: ignore[misc]
        if not ranges.any():
            continue
        inside = _within(spans.union(events.ts_ns[ranges], events.end_ns[ranges]), called) & (kinds == "")
        if kernels_copy:
            kinds[inside & (activity.work == Work.COMPUTE)] = kernels_copy
        for place in np.flatnonzero(inside & (activity.work == Work.MEMORY)).tolist():
            name = events.names[events.name[activity.indices[place]]]
            kinds[place] = _DIRECTIONS.get(copy_kind(name)[0], kernels_copy)
    return kinds


def _within(ranges: Spans, times: Ints) -> NDArray[np.bool_]:
    at = np.searchsorted(ranges.starts, times, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (times < ranges.ends[np.maximum(at, 0)])
    return inside
