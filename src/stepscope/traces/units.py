"""Sharded training (FSDP, ZeRO) unit by unit: what each gathers and reduces, in which pass, and whether it came early."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import EARLY_SHARE, ROOT, ShardedUnits, UnitCall
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.events import Category, Events, RankTrace
from stepscope.traces.frameworks_seen import frameworks_of
from stepscope.traces.groups import NOT_SHARDED, kind_by_name
from stepscope.traces.phases import BACKWARD, pass_at

_FSDP2 = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((.*)\))?$")
_FSDP1 = "FullyShardedDataParallel."
_OPS = ("all_gather", "reduce_scatter", "all_reduce")
_ON_GPU = 1

QUEUED_NS = 20_000
"""Communication that begins so soon after other communication waited for it: a launch and its dependencies take less."""


def sharded_units(
    trace: RankTrace, activity: Activity, phases: dict[str, Spans], collectives: Sequence[RankCollective]
) -> ShardedUnits | None:
    """The rank's units; None where nothing says that parameters are sharded.

    FSDP2 names its units in annotations. Without names the pattern decides: a group that gathers in the forward pass and
    reduces and scatters in the backward pass alone. There the forward pass numbers the units; the backward pass visits
    them in reverse.
    """
    events = trace.events
    calls = sorted((c for c in collectives if c.launch_ns is not None and c.op in _OPS), key=lambda c: c.launch_ns or 0)
    if not calls:
        return None
    times = np.array([c.launch_ns for c in calls], dtype=np.int64)
    in_backward = (pass_at(phases, times) == BACKWARD).tolist()
    units = _annotated(events, calls)
    named_by = "annotation" if any(u is not None for u in units) else "order"
    if named_by == "order":
        calls, in_backward = _of_sharding_groups(calls, in_backward)
        units = by_order(calls, in_backward)
    kept = [
        (c, b, u) for c, b, u in zip(calls, in_backward, units, strict=True) if u is not None or named_by == "order"
    ]
    if not kept:
        return None
    memory = trace.events.memory
    on_gpu = memory.reserved_bytes[memory.device_type == _ON_GPU] if memory is not None else ()
    return ShardedUnits(
        rank=trace.rank,
        wrapper=_wrapper(trace),
        named_by=named_by,
        source=activity.source,
        calls=_rows(activity, kept),
        reserved_bytes=int(max(on_gpu)) if len(on_gpu) else None,
        capacity_bytes=trace.meta.device_memory_bytes,
        host_ns=0 if activity.source == "device" else _host_ns(events, activity),
    )


def _host_ns(events: Events, activity: Activity) -> int:
    """Time of the wrapper's own ranges without communication; ``FullyShardedDataParallel.forward`` is the module's."""
    own = [code for code, name in enumerate(events.names) if name.startswith(("FSDP::", f"{_FSDP1}_"))]
    chosen = (events.category == Category.USER_ANNOTATION) & np.isin(events.name, np.array(own, dtype=np.int64))
    ranges = spans.union(events.ts_ns[chosen], events.end_ns[chosen])
    if activity.window is not None:
        ranges = spans.clip(ranges, low=activity.window[0], high=activity.window[1])
    return int(spans.subtract(ranges, activity.comm).measure)


def _wrapper(trace: RankTrace) -> str:
    names = trace.events.names
    if any(n.startswith("FSDP::") for n in names):
        return "fsdp2"
    if any(n.startswith(_FSDP1) for n in names):
        return "fsdp1"
    return "deepspeed" if "deepspeed" in frameworks_of(trace.events, trace.meta) else "unknown"


def _annotated(events: Events, calls: Sequence[RankCollective]) -> list[str | None]:
    """The unit that FSDP2's annotation around each launch names."""
    found = {code: _FSDP2.match(name) for code, name in enumerate(events.names) if name.startswith("FSDP::")}
    names = {code: match[1] or ROOT for code, match in found.items() if match}
    chosen = np.flatnonzero(
        (events.category == Category.USER_ANNOTATION) & np.isin(events.name, np.array(list(names), dtype=np.int64))
    )
    if not len(chosen):
        return [None] * len(calls)
    chosen = chosen[np.argsort(events.ts_ns[chosen], kind="stable")]
    times = np.array([c.launch_ns for c in calls], dtype=np.int64)
    at = np.searchsorted(events.ts_ns[chosen], times, side="right") - 1
    inside = (at >= 0) & (times < events.end_ns[chosen[np.maximum(at, 0)]])
    return [names[int(events.name[chosen[i]])] if ok else None for i, ok in zip(at.tolist(), inside, strict=True)]


def _of_sharding_groups(
    calls: Sequence[RankCollective], in_backward: Sequence[bool]
) -> tuple[list[RankCollective], list[bool]]:
    """The gathers and reductions of groups that gather going forward, and reduce and scatter going backward alone."""
    seen: dict[str, set[tuple[str, bool]]] = defaultdict(set)
    named = {}
    for each, back in zip(calls, in_backward, strict=True):
        name = each.group.name if each.group else ""
        seen[name].add((each.op, back))
        named[name] = kind_by_name(each.group)
    sharding = {
        name
        for name, ops in seen.items()
        if {("all_gather", False), ("reduce_scatter", True)} <= ops
        and ("reduce_scatter", False) not in ops
        and named[name] not in NOT_SHARDED
    }
    mine = [
        (c, b)
        for c, b in zip(calls, in_backward, strict=True)
        if c.op != "all_reduce" and (c.group.name if c.group else "") in sharding
    ]
    return [c for c, _ in mine], [b for _, b in mine]


def by_order(calls: Sequence[RankCollective], in_backward: Sequence[bool], *, word: str = "unit") -> list[str | None]:
    """``unit N`` for each call: its place in the forward pass, which the backward pass visits in reverse; None: unclear."""
    units: list[str | None] = []
    forward: list[RankCollective] = []
    before = True
    left: dict[str, int] = {}
    for each, back in zip(calls, in_backward, strict=True):
        if not back:
            if before:
                forward = []
            forward.append(each)
            units.append(f"{word} {len(forward) - 1}")
        else:
            if not before:
                left = {}
            at = left.get(each.op, len(forward)) - 1
            while at >= 0 and not _alike(forward[at], each):
                at -= 1
            units.append(f"{word} {at}" if at >= 0 else None)
            if at >= 0:
                left[each.op] = at
        before = back
    return units


def _alike(a: RankCollective, b: RankCollective) -> bool:
    """Of one unit as far as sizes tell; gradients may be reduced in another type than parameters are gathered in."""
    return None in (a.size_bytes, b.size_bytes) or a.dtype != b.dtype or a.size_bytes == b.size_bytes


def _rows(activity: Activity, kept: Sequence[tuple[RankCollective, bool, str | None]]) -> tuple[UnitCall, ...]:
    rows = []
    blocks = spans.union(activity.comm.starts, activity.comm.ends + QUEUED_NS)

    def within(low: int, high: int) -> int:
        ends = np.array([low], dtype=np.int64), np.array([high], dtype=np.int64)
        return int(spans.measure_within(activity.compute, *ends)[0])

    for step, calls in groupby(kept, key=lambda each: each[0].step):
        previous: tuple[int, bool] | None = None
        for place, (each, back, unit) in enumerate(calls):
            early, room = None, 0
            if each.op == "all_gather":
                if previous is not None and previous[1] == back and activity.source == "device":
                    # What queues behind communication that began in time was not launched late.
                    begun = int(blocks.starts[np.searchsorted(blocks.starts, each.start_ns, side="right") - 1])
                    early = within(begun, each.end_ns) >= EARLY_SHARE * max(each.duration_ns, 1)
                    room = within(previous[0], each.end_ns)
                    if not early and room < EARLY_SHARE * each.duration_ns:
                        early = None  # the unit before it computes nothing: the root, or one that only holds others
                previous = each.end_ns, back
            rows.append(
                UnitCall(
                    step=step,
                    place=place,
                    unit=unit,
                    op=each.op,
                    phase="backward" if back else "forward",
                    size_bytes=each.size_bytes,
                    start_ns=each.start_ns,
                    end_ns=each.end_ns,
                    exposed_ns=each.exposed_ns,
                    early=early,
                    room_ns=room,
                )
            )
    return tuple(rows)
