"""Facts of one rank that only rules ask for (records.trace_rules): cheap, and part of every full reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import GradientSync, HostLateness, KernelKind, KernelMix, SyncPlace
from stepscope.stats import spans
from stepscope.traces.events import Category, Events, Ints, RankTrace
from stepscope.traces.idle import IdleGaps
from stepscope.traces.kernel_names import Work, kernel_kind, work_of
from stepscope.traces.nesting import sums
from stepscope.traces.passes import AUTOGRAD, Marks, step_marks

SHORT_NS = 10_000
"""A kernel of at most this takes no longer than launching it: 5 to 10 us a launch in eager PyTorch (the V100, A100 and
MI300 traces this was built on, 2026-11)."""

RECORD_NS = 1_300
"""What the profiler takes, with shapes, for each operator that it records: 1.2 ms more a step of 946 operators (one job on
2 cores busy, torch 2.13). Of one between two others this is outside of both: a gap."""

_REDUCTIONS = ("all_reduce", "reduce_scatter")


def kernel_mix(trace: RankTrace) -> KernelMix | None:
    """The compute kernels by kind; None when the trace has none."""
    events = trace.events
    chosen = np.flatnonzero((events.category == Category.KERNEL) & (work_of(events) == Work.COMPUTE))
    if not len(chosen):
        return None
    names, durations = events.name[chosen], events.dur_ns[chosen]
    calls = np.bincount(names, minlength=len(events.names))
    spent = sums(names, durations, len(events.names))
    by_kind: dict[str, list[int]] = {}
    for code in np.flatnonzero(calls).tolist():
        by_kind.setdefault(kernel_kind(events.names[code]), []).append(code)
    kinds = [
        KernelKind(
            kind=kind,
            calls=int(calls[codes].sum()),
            total_ns=int(spent[codes].sum()),
            largest=events.names[(largest := max(codes, key=lambda c: spent[c]))],
            largest_ns=int(spent[largest]),
        )
        for kind, codes in by_kind.items()
    ]
    short = durations <= SHORT_NS
    return KernelMix(
        rank=trace.rank,
        kinds=tuple(sorted(kinds, key=lambda k: -k.total_ns)),
        calls=len(chosen),
        total_ns=int(durations.sum()),
        short_limit_ns=SHORT_NS,
        short_calls=int(short.sum()),
        short_ns=int(durations[short].sum()),
    )


def host_lateness(trace: RankTrace, gaps: IdleGaps) -> HostLateness | None:
    """What the host did in the gaps whose cause is ``host_late``; None where no operator was recorded."""
    events = trace.events
    late = gaps.by_cause.get("host_late")
    operators = events.category == Category.CPU_OP
    if late is None or not operators.any():
        return None
    host = operators | np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    in_operators = spans.union(events.ts_ns[host], events.end_ns[host])
    starts = gaps.holes.starts + gaps.by_cause.get("sync", 0)  # the host was in a wait first
    inside = int(spans.measure_within(in_operators, starts, starts + late).sum())
    total = int(late.sum())
    found = HostLateness(rank=trace.rank, late_ns=total, operator_ns=inside, python_ns=total - inside)
    if events.is_device.any():
        return found
    from stepscope.traces.launches import host_dispatch

    calls, dispatch_ns, recorded = host_dispatch(events)
    return replace(
        found,
        profiler_ns=min(found.python_ns, recorded * RECORD_NS),
        dispatch_ns=dispatch_ns,
        dispatch_calls=calls,
    )


def step_operators(trace: RankTrace) -> float | None:
    """Operators called in a marked step; None without marks, or where none was recorded."""
    marks = step_marks(trace.events)
    starts = trace.events.ts_ns[trace.events.category == Category.CPU_OP]
    if not len(marks) or not len(starts):
        return None
    return int(((starts >= marks.starts[0]) & (starts < marks.ends[-1])).sum()) / len(marks)


def step_flop(trace: RankTrace) -> float | None:
    """FLOP of a marked step; None without marks, or where no product has recorded FLOP or shapes."""
    events = trace.events
    marks = step_marks(events)
    if not len(marks) or not (events.flop or len(events.shapes)):
        return None
    from stepscope.traces.operators import flop_by_event  # of traces with shapes alone

    operators = np.flatnonzero(events.category == Category.CPU_OP)
    starts = events.ts_ns[operators]
    operators = operators[(starts >= marks.starts[0]) & (starts < marks.ends[-1])]
    flop, _, why = flop_by_event(events, operators)
    if why is not None:
        return None
    return float(flop[flop > 0].sum()) / len(marks)


def gradient_sync(trace: RankTrace, collectives: Sequence[RankCollective]) -> GradientSync | None:
    """Where the reductions were launched; None without marked steps, a backward pass or reductions."""
    marks = step_marks(trace.events)
    calls = [i for i, c in enumerate(collectives) if c.op in _REDUCTIONS and c.launch_ns is not None]
    if not len(marks) or not calls:
        return None
    first, last = _backward(trace.events, marks)
    there = last > first
    if not there.any():
        return None
    launched = np.array([collectives[i].launch_ns for i in calls], dtype=np.int64)
    step = np.searchsorted(marks.starts, launched, side="right") - 1
    inside_a_step = (step >= 0) & (launched < marks.ends[step]) & there[step]
    places: dict[str, list[int]] = {"before": [], "inside": [], "after": []}
    for each, at, mine, known in zip(calls, launched.tolist(), step.tolist(), inside_a_step.tolist(), strict=True):
        if known:
            place = "before" if at < first[mine] else "inside" if at < last[mine] else "after"
            places[place].append(each)
    if not any(places.values()):
        return None
    return GradientSync(
        rank=trace.rank,
        steps=int(there.sum()),
        before=_place(collectives, places["before"]),
        inside=_place(collectives, places["inside"]),
        after=_place(collectives, places["after"]),
    )


def _backward(events: Events, marks: Marks) -> tuple[Ints, Ints]:
    """First start and last end of the autograd engine's work in each step; end 0 where a step has none."""
    autograd = (events.category == Category.CPU_OP) & (
        events.named(lambda name: name.startswith(AUTOGRAD)) | (events.forward_thread > 0)
    )
    starts, ends = events.ts_ns[autograd], events.end_ns[autograd]
    step = np.searchsorted(marks.starts, starts, side="right") - 1
    known = step >= 0
    known[known] &= starts[known] < marks.ends[step[known]]
    first = np.full(len(marks), np.iinfo(np.int64).max, dtype=np.int64)
    last = np.zeros(len(marks), dtype=np.int64)
    np.minimum.at(first, step[known], starts[known])
    np.maximum.at(last, step[known], ends[known])
    return first, last


def _place(collectives: Sequence[RankCollective], chosen: Sequence[int]) -> SyncPlace:
    return SyncPlace(
        positions=tuple(chosen),
        total_ns=sum(collectives[i].duration_ns for i in chosen),
        exposed_ns=sum(collectives[i].exposed_ns for i in chosen),
    )
