"""Sharded training (FSDP, ZeRO) unit by unit: what each gathers and reduces, in which pass, and whether it came early.

Copies that sharding itself makes around its collectives, and how much of them no computation hides.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import EARLY_SHARE, ROOT, ShardedUnits, UnitCall, UnitCopies
from stepscope.stats import spans
from stepscope.traces.activity import Activity, activity_of
from stepscope.traces.collectives import communication
from stepscope.traces.events import Category, Events, Ints, RankView, column
from stepscope.traces.groups import NOT_SHARDED, group_name, kind_by_name
from stepscope.traces.kernel_names import Work
from stepscope.traces.kernels import copy_kind
from stepscope.traces.launches import launches_of
from stepscope.traces.steps import BACKWARD, pass_at, phases_of, windows_of
from stepscope.traces.workload import frameworks_of

_FSDP2 = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((.*)\))?$")
_FSDP1 = "FullyShardedDataParallel."
_OPS = ("all_gather", "reduce_scatter", "all_reduce")
_ON_GPU = 1

QUEUED_NS = 20_000
"""Communication that begins so soon after other communication waited for it: a launch and its dependencies take less."""


def sharded_units(view: RankView) -> ShardedUnits | None:
    """The rank's units; None where nothing says that parameters are sharded.

    FSDP2 names its units in annotations. Without names the pattern decides: a group that gathers in the forward pass and
    reduces and scatters in the backward pass alone. There the forward pass numbers the units; the backward pass visits
    them in reverse.
    """
    events, activity = view.events, activity_of(view)
    launched = (c for c in communication(view).collectives if c.launch_ns is not None and c.op in _OPS)
    calls = sorted(launched, key=lambda c: c.launch_ns or 0)
    if not calls:
        return None
    times = column(calls, "launch_ns")
    in_backward = (pass_at(phases_of(view), times) == BACKWARD).tolist()
    units = _annotated_units(events, calls)
    named_by = "annotation" if any(u is not None for u in units) else "order"
    if named_by == "order":
        calls, in_backward = _of_sharding_groups(calls, in_backward)
        units = by_order(calls, in_backward)
    kept = [
        (c, b, u) for c, b, u in zip(calls, in_backward, units, strict=True) if u is not None or named_by == "order"
    ]
    if not kept:
        return None
    memory = events.memory
    on_gpu = memory.reserved_bytes[memory.device_type == _ON_GPU] if memory is not None else ()
    return ShardedUnits(
        rank=view.rank,
        wrapper=_wrapper_name(view),
        named_by=named_by,
        source=activity.source,
        calls=_unit_calls(activity, kept),
        reserved_bytes=int(max(on_gpu)) if len(on_gpu) else None,
        capacity_bytes=view.meta.device_memory_bytes,
        host_ns=0 if activity.source == "device" else _host_ns(events, activity),
        copies=unit_copies(view) if activity.source == "device" else (),
    )


def _host_ns(events: Events, activity: Activity) -> int:
    """Time of the wrapper's own ranges without communication; ``FullyShardedDataParallel.forward`` is the module's."""
    own = [code for code, name in enumerate(events.names) if name.startswith(("FSDP::", f"{_FSDP1}_"))]
    chosen = (events.category == Category.USER_ANNOTATION) & np.isin(events.name, np.array(own, dtype=np.int64))
    ranges = events.spans(chosen)
    if activity.window is not None:
        ranges = spans.clip(ranges, low=activity.window[0], high=activity.window[1])
    return int(spans.subtract(ranges, activity.comm).measure)


def _wrapper_name(view: RankView) -> str:
    """Name what shards the model, by its annotations."""
    names = view.events.names
    if any(n.startswith("FSDP::") for n in names):
        return "fsdp2"
    if any(n.startswith(_FSDP1) for n in names):
        return "fsdp1"
    return "deepspeed" if "deepspeed" in frameworks_of(view.events, view.meta) else "unknown"


def _annotated_units(events: Events, calls: Sequence[RankCollective]) -> list[str | None]:
    """The unit that FSDP2's annotation around each launch names."""
    matches = {code: _FSDP2.match(name) for code, name in enumerate(events.names) if name.startswith("FSDP::")}
    names = {code: match[1] or ROOT for code, match in matches.items() if match}
    chosen = np.flatnonzero(
        (events.category == Category.USER_ANNOTATION) & np.isin(events.name, np.array(list(names), dtype=np.int64))
    )
    chosen = chosen[np.argsort(events.ts_ns[chosen], kind="stable")]
    times = column(calls, "launch_ns")
    at = spans.place(events.ts_ns[chosen], events.end_ns[chosen], times)
    return [None if i < 0 else names[int(events.name[chosen[i]])] for i in at.tolist()]


def _of_sharding_groups(
    calls: Sequence[RankCollective], in_backward: Sequence[bool]
) -> tuple[list[RankCollective], list[bool]]:
    """The gathers and reductions of groups that gather going forward, and reduce and scatter going backward alone."""
    seen: dict[str, set[tuple[str, bool]]] = defaultdict(set)
    named = {}
    for call, back in zip(calls, in_backward, strict=True):
        name = group_name(call)
        seen[name].add((call.op, back))
        named[name] = kind_by_name(call.group)
    sharding = {
        name
        for name, ops in seen.items()
        if {("all_gather", False), ("reduce_scatter", True)} <= ops
        and ("reduce_scatter", False) not in ops
        and named[name] not in NOT_SHARDED
    }
    kept = [
        (c, b) for c, b in zip(calls, in_backward, strict=True) if c.op != "all_reduce" and group_name(c) in sharding
    ]
    return [c for c, _ in kept], [b for _, b in kept]


def by_order(calls: Sequence[RankCollective], in_backward: Sequence[bool], *, word: str = "unit") -> list[str | None]:
    """``unit N`` for each call: its place in the forward pass, which the backward pass visits in reverse; None: unclear."""
    units: list[str | None] = []
    forward: list[RankCollective] = []
    before = True
    left: dict[str, int] = {}
    for call, back in zip(calls, in_backward, strict=True):
        if not back:
            if before:
                forward = []
            forward.append(call)
            units.append(f"{word} {len(forward) - 1}")
        else:
            if not before:
                left = {}
            at = left.get(call.op, len(forward)) - 1
            while at >= 0 and not _may_be_one_unit(forward[at], call):
                at -= 1
            units.append(f"{word} {at}" if at >= 0 else None)
            if at >= 0:
                left[call.op] = at
        before = back
    return units


def _may_be_one_unit(a: RankCollective, b: RankCollective) -> bool:
    """Return whether two calls are of one unit, as far as sizes tell; gradients may be reduced in another type than
    parameters are gathered in."""
    return None in (a.size_bytes, b.size_bytes) or a.dtype != b.dtype or a.size_bytes == b.size_bytes


def _unit_calls(activity: Activity, kept: Sequence[tuple[RankCollective, bool, str | None]]) -> tuple[UnitCall, ...]:
    """Return the calls of units with their exposed ns, and of gathers whether they ran early and how much room there was,
    ns."""
    rows = []
    blocks = spans.union(activity.comm.starts, activity.comm.ends + QUEUED_NS)

    def within(low: int, high: int) -> int:
        ends = np.array([low], dtype=np.int64), np.array([high], dtype=np.int64)
        return int(spans.measure_within(activity.compute, *ends)[0])

    for step, calls in groupby(kept, key=lambda call: call[0].step):
        previous: tuple[int, bool] | None = None
        for place, (call, back, unit) in enumerate(calls):
            early, room = None, 0
            if call.op == "all_gather":
                if previous is not None and previous[1] == back and activity.source == "device":
                    # What queues behind communication that began in time was not launched late.
                    begun = int(blocks.starts[np.searchsorted(blocks.starts, call.start_ns, side="right") - 1])
                    early = within(begun, call.end_ns) >= EARLY_SHARE * max(call.duration_ns, 1)
                    room = within(previous[0], call.end_ns)
                    if not early and room < EARLY_SHARE * call.duration_ns:
                        early = None  # the unit before it computes nothing: the root, or one that only holds others
                previous = call.end_ns, back
            rows.append(
                UnitCall(
                    step=step,
                    place=place,
                    unit=unit,
                    op=call.op,
                    phase="backward" if back else "forward",
                    size_bytes=call.size_bytes,
                    start_ns=call.start_ns,
                    end_ns=call.end_ns,
                    exposed_ns=call.exposed_ns,
                    early=early,
                    room_ns=room,
                )
            )
    return tuple(rows)


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


def unit_copies(view: RankView) -> tuple[UnitCopies, ...]:
    """Return the copies in the steps (without marks: in the window) by kind, longest exposed first.

    Exposed: kernels under no other computation, memory copies under no other work at all, as in the budget.
    """
    events, activity, launches, edges = view.events, activity_of(view), launches_of(view), windows_of(view).edges
    indices, work = activity.indices, activity.work
    starts, ends = events.ts_ns[indices], events.end_ns[indices]
    kinds = _copy_kinds(events, activity, np.where(launches.linked, events.ts_ns[np.maximum(launches.launch, 0)], -1))
    if len(edges):
        kinds[(starts < edges[0]) | (starts >= edges[-1])] = ""
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
        members = kinds == kind
        exposed = spans.EMPTY
        for of, hides in hidden_by.items():
            these = members & (work == of)
            exposed = spans.join(exposed, spans.subtract(spans.union(starts[these], ends[these]), hides))
        longest = int(np.argmax(np.where(members, ends - starts, -1)))
        rows.append(
            UnitCopies(
                kind=kind,
                calls=int(members.sum()),
                busy_ns=spans.union(starts[members], ends[members]).measure,
                exposed_ns=exposed.measure,
                longest_ns=(int(starts[longest]), int(ends[longest])),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.exposed_ns))


def _copy_kinds(events: Events, activity: Activity, called: Ints) -> NDArray[np.object_]:
    """Tell what each event of ``activity`` copies, by where its launch was ``called``; "" for what is no copy of a unit."""
    host = events.of(Category.USER_ANNOTATION, Category.CPU_OP)
    kinds = np.full(len(called), "", dtype=object)
    for mark, kernels_copy in _MARKS.items():
        ranges = host & events.named(lambda name, begins=mark.match: begins(name) is not None)  # type: ignore[misc]
        if not ranges.any():
            continue
        inside = spans.holds(events.spans(ranges), called) & (kinds == "")
        if kernels_copy:
            kinds[inside & (activity.work == Work.COMPUTE)] = kernels_copy
        for place in np.flatnonzero(inside & (activity.work == Work.MEMORY)).tolist():
            name = events.names[events.name[activity.indices[place]]]
            kinds[place] = _DIRECTIONS.get(copy_kind(name)[0], kernels_copy)
    return kinds
