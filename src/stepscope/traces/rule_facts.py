"""Facts of one rank that only rules ask for (records.trace_rules): cheap, and part of every full reading.

Whether a traced step communicated as its strategy declared: the same collectives, and overlapped or not.

The spec is the ``comm_plan`` that ``bench --profile`` leaves in the trace. What people are told to see
by eye, naive synchronisation after the backward pass against overlapped synchronisation inside it, is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.records import mesh
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import ConformanceCheck, RankCollective
from stepscope.records.trace_rules import GradientSync, HostLateness, KernelKind, KernelMix, SyncPlace
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.classes import work_of
from stepscope.traces.collective_calls import REDUCTIONS
from stepscope.traces.collectives import communication
from stepscope.traces.events import Category, Events, Ints, RankView, column
from stepscope.traces.idle import gaps_of
from stepscope.traces.kernel_names import Work, kernel_kind
from stepscope.traces.marks import Marks, marks_of
from stepscope.traces.nesting import sums
from stepscope.traces.passes import autograd_work, loading_marks
from stepscope.traces.steps import phase_of

SHORT_NS = 10_000
"""A kernel of at most this takes no longer than launching it: 5 to 10 us a launch in eager PyTorch (the V100, A100 and
MI300 traces this was built on, 2026-11)."""

RECORD_NS = 1_300
"""What the profiler takes, with shapes, for each operator that it records: 1.2 ms more a step of 946 operators (one job on
2 cores busy, torch 2.13). Of one between two others this is outside of both: a gap."""


def kernel_mix(view: RankView) -> KernelMix | None:
    """The compute kernels by kind; None when the trace has none."""
    events = view.events
    chosen = np.flatnonzero((events.category == Category.KERNEL) & (work_of(view) == Work.COMPUTE))
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
        rank=view.rank,
        kinds=tuple(sorted(kinds, key=lambda k: -k.total_ns)),
        calls=len(chosen),
        total_ns=int(durations.sum()),
        short_limit_ns=SHORT_NS,
        short_calls=int(short.sum()),
        short_ns=int(durations[short].sum()),
    )


def host_lateness(view: RankView) -> HostLateness | None:
    """Return what the host did in the gaps whose cause is ``host_late``; None where no operator was recorded."""
    events, gaps = view.events, gaps_of(view)
    late = gaps.by_cause.get("host_late")
    operators = events.category == Category.CPU_OP
    if late is None or not operators.any():
        return None
    host = operators | events.of(Category.RUNTIME, Category.DRIVER)
    in_operators = events.spans(host)
    starts = gaps.holes.starts + gaps.by_cause.get("sync", 0)  # the host was in a wait first
    inside = int(spans.measure_within(in_operators, starts, starts + late).sum())
    total = int(late.sum())
    lateness = HostLateness(rank=view.rank, late_ns=total, operator_ns=inside, python_ns=total - inside)
    if events.is_device.any():
        return lateness
    from stepscope.traces.idle import host_dispatch

    calls, dispatch_ns, recorded = host_dispatch(view)
    return replace(
        lateness,
        profiler_ns=min(lateness.python_ns, recorded * RECORD_NS),
        dispatch_ns=dispatch_ns,
        dispatch_calls=calls,
    )


def step_operators(view: RankView) -> float | None:
    """Operators called in a marked step, but for those by which its loader makes batches; None without marks, or where none
    was recorded."""
    events, marks = view.events, marks_of(view)
    starts = events.ts_ns[events.category == Category.CPU_OP]
    if not len(marks) or not len(starts):
        return None
    starts = starts[(starts >= marks.starts[0]) & (starts < marks.ends[-1])]
    loading = events.spans(loading_marks(events))
    return int((~spans.holds(loading, starts)).sum()) / len(marks)


def step_flop(view: RankView) -> float | None:
    """FLOP of a marked step; None without marks, or where no product has recorded FLOP or shapes."""
    events, marks = view.events, marks_of(view)
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


def gradient_sync(view: RankView) -> GradientSync | None:
    """Return where the reductions were launched; None without marked steps, a backward pass or reductions."""
    marks, collectives = marks_of(view), communication(view).collectives
    calls = [i for i, c in enumerate(collectives) if c.op in REDUCTIONS and c.launch_ns is not None]
    if not len(marks) or not calls:
        return None
    first, last = _backward_ranges_ns(view.events, marks)
    there = last > first
    if not there.any():
        return None
    launched = column(collectives, "launch_ns")[calls]
    step = spans.place(marks.starts, marks.ends, launched)
    inside_a_step = (step >= 0) & there[step]
    places: dict[str, list[int]] = {"before": [], "inside": [], "after": []}
    for call, at, number, in_step in zip(calls, launched.tolist(), step.tolist(), inside_a_step.tolist(), strict=True):
        if in_step:
            place = "before" if at < first[number] else "inside" if at < last[number] else "after"
            places[place].append(call)
    if not any(places.values()):
        return None
    return GradientSync(
        rank=view.rank,
        steps=int(there.sum()),
        before=_sync_place(collectives, places["before"]),
        inside=_sync_place(collectives, places["inside"]),
        after=_sync_place(collectives, places["after"]),
    )


def _backward_ranges_ns(events: Events, marks: Marks) -> tuple[Ints, Ints]:
    """First start and last end of the autograd engine's work in each step; end 0 where a step has none."""
    autograd = autograd_work(events)
    starts, ends = events.ts_ns[autograd], events.end_ns[autograd]
    step = spans.place(marks.starts, marks.ends, starts)
    in_step = step >= 0
    first = np.full(len(marks), np.iinfo(np.int64).max, dtype=np.int64)
    last = np.zeros(len(marks), dtype=np.int64)
    np.minimum.at(first, step[in_step], starts[in_step])
    np.maximum.at(last, step[in_step], ends[in_step])
    return first, last


def _sync_place(collectives: Sequence[RankCollective], chosen: Sequence[int]) -> SyncPlace:
    return SyncPlace(
        positions=tuple(chosen),
        total_ns=sum(collectives[i].duration_ns for i in chosen),
        exposed_ns=sum(collectives[i].exposed_ns for i in chosen),
    )


_MESSAGES = ("send", "recv")
"""A trace calls both ends ``send_recv``, and a schedule decides when they are called."""

_AHEAD = ("all_gather",)
"""Prefetch may call these in an earlier phase than the one that needs them."""

_REGIONS = {
    "forward": ("stepscope.forward", "stepscope.loss"),
    "backward": ("stepscope.backward",),
    "after_backward": ("stepscope.communication",),
    "optimizer": ("stepscope.optimizer",),
}
"""Where the host is in each phase of a plan."""


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One call of a collective or message. size_bytes: -1 where it was not recorded. phase: empty where it does not matter,
    or cannot be told."""

    op: str
    size_bytes: int
    phase: str

    def may_be(self, seen: Call) -> bool:
        """Return whether ``seen`` can be this call; a size that was not recorded may be any."""
        return (self.op, self.phase) == (seen.op, seen.phase) and seen.size_bytes in (-1, self.size_bytes)

    def __str__(self) -> str:
        size = "unknown size" if self.size_bytes < 0 else f"{self.size_bytes} bytes"
        return f"{self.op} of {size}" + (f" in {self.phase}" if self.phase else "")


@dataclass(frozen=True, slots=True)
class _Differences:
    """How a step differs from the plan. texts: in words, what is missing and what is too much. certain: no order, batching
    or prefetch of the plan explains them."""

    texts: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class _Planned:
    """A call of the plan. ranks: the members of its group, as far as the mesh tells."""

    call: Call
    group: str
    size: int | None
    ranks: tuple[int, ...] | None

    def may_be(self, seen: RankCollective) -> bool:
        """Whether nothing that is known of the groups speaks against it."""
        named = seen.group.ranks if seen.group is not None else None
        if named is not None and self.ranks is not None:
            return named == self.ranks
        return None in (self.size, seen.group_size) or self.size == seen.group_size


def check_plan(view: RankView) -> ConformanceCheck | None:
    """The check of one rank's trace, over the steps recorded whole; None when the trace carries no plan.

    A step's collectives are those launched between its annotation's start and the next one's. Compared are operation,
    bytes, phase (where the step's regions were recorded) and group: its members, or their number, as far as the trace
    tells them; gloo's calls name no group, and gathers and scatters show the number of ranks by their buffers.
    """
    marks, meta = marks_of(view), view.meta
    plan = meta.stepscope.get("communication_plan")
    if not isinstance(plan, list):
        return None
    phases = {phase: _named_regions(view.events, names) for phase, names in _REGIONS.items()}
    phased = any(len(phase) for phase in phases.values())
    planned = [_planned_call(op, view, phased=phased) for op in plan]
    early = sum(op.get("phase") == "backward" and op["op"] not in _MESSAGES for op in plan)
    launched = [(c, c.launch_ns) for c in communication(view).collectives if c.launch_ns is not None]
    differences: list[str] = []
    certain = False
    inside = 0
    for number, start, end in zip(marks.numbers.tolist(), marks.starts.tolist(), marks.ends.tolist(), strict=True):
        step_calls = [(c, phase_of(phases, at) or "") for c, at in launched if start <= at < end]
        outcome = _plan_differences(planned, step_calls)
        differences += [f"step {number}: {text}" for text in outcome.texts]
        certain |= outcome.certain
        inside += sum(phase == "backward" for _, phase in step_calls)
    return ConformanceCheck(
        rank=view.rank,
        strategy=str(meta.stepscope.get("strategy", "")),
        steps=len(marks),
        planned_per_step=len(planned),
        launched_in_backward=inside,
        overlap_planned=early > 0,
        holds=not differences if len(marks) else None,
        differences=tuple(differences),
        certain=certain,
    )


def _named_regions(events: Events, names: tuple[str, ...]) -> Spans:
    marked = (events.category == Category.USER_ANNOTATION) & events.named(lambda n: n in names)
    return events.spans(marked)


def _planned_call(op: Mapping[str, Any], view: RankView, *, phased: bool) -> _Planned:
    """Return one entry of a plan as a call, with its group's size and ranks. phased: calls of another phase are others."""
    message = op["op"] in _MESSAGES
    size = int(op["numel"]) * DTYPE_BYTES[str(op["dtype"])]
    phase = str(op.get("phase", "")) if phased and not message else ""
    group = str(op.get("group", "dp"))
    members = _group_size_and_members(group, view)
    return _Planned(
        call=Call("send_recv" if message else str(op["op"]), size, phase),
        group=group,
        size=None if message else members[0],
        ranks=None if message else members[1],
    )


def _group_size_and_members(name: str, view: RankView) -> tuple[int | None, tuple[int, ...] | None]:
    """Return a group's number of ranks and its members; None where the trace does not tell the mesh."""
    shape, world = view.meta.stepscope.get("mesh"), view.meta.world_size
    if not isinstance(shape, Mapping) or world is None:
        return None, None
    return mesh.size(shape, world, name), mesh.members(shape, world, view.rank, name)


def _plan_differences(planned: Sequence[_Planned], seen: Iterable[tuple[RankCollective, str]]) -> _Differences:
    """Return what the plan has and the trace does not, and the other way round, as texts."""
    left, extra = list(planned), list[tuple[RankCollective, Call]]()
    # What the trace knows most of has the choice: the rest fits more of the plan.
    for c, phase in sorted(seen, key=lambda e: (e[0].size_bytes is None, e[0].group is None, e[0].group_size is None)):
        size = -1 if c.size_bytes is None else c.size_bytes
        call = Call(c.op, size, "" if c.op == "send_recv" else phase)
        partner = next((p for p in left if p.call.may_be(call) and p.may_be(c)), None)
        if partner is None:
            extra.append((c, call))
        else:
            left.remove(partner)
    missing = Counter(f"{p.call}" + ("" if p.group == "dp" else f" on {p.group}") for p in left)
    more = Counter(f"{call}{_group_words(c)}" for c, call in extra)
    texts = [f"missing {n} x {what}" for what, n in sorted(missing.items())]
    texts += [f"{n} x {what} that the plan does not have" for what, n in sorted(more.items())]
    return _Differences(tuple(texts), certain=not _may_be_rearranged(left, extra))


def _may_be_rearranged(left: Sequence[_Planned], extra: Sequence[tuple[RankCollective, Call]]) -> bool:
    """Whether what was seen beyond the plan may be what is missing of it: the same bytes of an operation in other pieces,
    or gathers that were called ahead, among the same ranks as far as they are known."""
    wanted, called = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for p in left:
        wanted[_call_kind(p.call)] += p.call.size_bytes
    for c, call in extra:
        if c.size_bytes is None or not any(_call_kind(p.call) == _call_kind(call) and p.may_be(c) for p in left):
            return False
        called[_call_kind(call)] += call.size_bytes
    return wanted == called


def _call_kind(call: Call) -> tuple[str, str]:
    return call.op, "" if call.op in _AHEAD else call.phase


def _group_words(seen: RankCollective) -> str:
    if seen.group is not None and seen.group.description:
        return f" on {seen.group.description}"
    return f" on {seen.group_size} ranks" if seen.group_size is not None else ""
