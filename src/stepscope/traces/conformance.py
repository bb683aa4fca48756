"""Whether a traced step communicated as its strategy declared: the same collectives, and overlapped or not.

The spec is the ``comm_plan`` that ``bench --profile`` leaves in the trace. What document 003 asks people to see
by eye, naive synchronisation after the backward pass against overlapped synchronisation inside it, is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.records import mesh
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import ConformanceCheck, RankCollective
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.events import Category, Events, RankTrace
from stepscope.traces.passes import step_marks

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
    """size_bytes: -1 where it was not recorded. phase: empty where it does not matter, or cannot be told."""

    op: str
    size_bytes: int
    phase: str

    def may_be(self, seen: Call) -> bool:
        """A size that was not recorded may be any."""
        return (self.op, self.phase) == (seen.op, seen.phase) and seen.size_bytes in (-1, self.size_bytes)

    def __str__(self) -> str:
        size = "unknown size" if self.size_bytes < 0 else f"{self.size_bytes} bytes"
        return f"{self.op} of {size}" + (f" in {self.phase}" if self.phase else "")


@dataclass(frozen=True, slots=True)
class _Differences:
    """texts: in words, what is missing and what is too much. certain: no order, batching or prefetch of the plan explains
    them."""

    texts: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class _Planned:
    """ranks: the members of its group, as far as the mesh tells."""

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


def check_plan(trace: RankTrace, collectives: Sequence[RankCollective]) -> ConformanceCheck | None:
    """The check of one rank's trace, over the steps recorded whole; None when the trace carries no plan.

    A step's collectives are those launched between its annotation's start and the next one's. Compared are operation,
    bytes, phase (where the step's regions were recorded) and group: its members, or their number, as far as the trace
    tells them; gloo's calls name no group, and gathers and scatters show the number of ranks by their buffers.
    """
    plan = trace.meta.stepscope.get("communication_plan")
    if not isinstance(plan, list):
        return None
    marks = step_marks(trace.events)
    phases = {phase: _regions(trace.events, names) for phase, names in _REGIONS.items()}
    told = any(len(each) for each in phases.values())
    planned = [_planned(op, trace, phased=told) for op in plan]
    early = sum(op.get("phase") == "backward" and op["op"] not in _MESSAGES for op in plan)
    launched = [(c, c.launch_ns) for c in collectives if c.launch_ns is not None]
    differences: list[str] = []
    certain = False
    inside = 0
    for number, start, end in zip(marks.numbers.tolist(), marks.starts.tolist(), marks.ends.tolist(), strict=True):
        mine = [(c, _phase_at(phases, at)) for c, at in launched if start <= at < end]
        found = _differences(planned, mine)
        differences += [f"step {number}: {text}" for text in found.texts]
        certain |= found.certain
        inside += sum(phase == "backward" for _, phase in mine)
    return ConformanceCheck(
        rank=trace.rank,
        strategy=str(trace.meta.stepscope.get("strategy", "")),
        steps=len(marks),
        planned_per_step=len(planned),
        launched_in_backward=inside,
        overlap_planned=early > 0,
        holds=not differences if len(marks) else None,
        differences=tuple(differences),
        certain=certain,
    )


def _regions(events: Events, names: tuple[str, ...]) -> Spans:
    mine = (events.category == Category.USER_ANNOTATION) & events.named(lambda n: n in names)
    return spans.union(events.ts_ns[mine], events.end_ns[mine])


def _phase_at(phases: Mapping[str, Spans], at: int) -> str:
    return next((name for name, each in phases.items() if spans.clip(each, low=at, high=at + 1).measure), "")


def _planned(op: Mapping[str, Any], trace: RankTrace, *, phased: bool) -> _Planned:
    message = op["op"] in _MESSAGES
    size = int(op["numel"]) * DTYPE_BYTES[str(op["dtype"])]
    phase = str(op.get("phase", "")) if phased and not message else ""
    group = str(op.get("group", "dp"))
    members = _group(group, trace)
    return _Planned(
        call=Call("send_recv" if message else str(op["op"]), size, phase),
        group=group,
        size=None if message else members[0],
        ranks=None if message else members[1],
    )


def _group(name: str, trace: RankTrace) -> tuple[int | None, tuple[int, ...] | None]:
    """Number of ranks and members; None where the trace does not tell the mesh."""
    shape, world = trace.meta.stepscope.get("mesh"), trace.meta.world_size
    if not isinstance(shape, Mapping) or world is None:
        return None, None
    return mesh.size(shape, world, name), mesh.members(shape, world, trace.rank, name)


def _differences(planned: Sequence[_Planned], seen: Iterable[tuple[RankCollective, str]]) -> _Differences:
    left, extra = list(planned), list[tuple[RankCollective, Call]]()
    # What the trace knows most of has the choice: the rest fits more of the plan.
    for c, phase in sorted(seen, key=lambda e: (e[0].size_bytes is None, e[0].group is None, e[0].group_size is None)):
        size = -1 if c.size_bytes is None else c.size_bytes
        call = Call(c.op, size, "" if c.op == "send_recv" else phase)
        found = next((p for p in left if p.call.may_be(call) and p.may_be(c)), None)
        if found is None:
            extra.append((c, call))
        else:
            left.remove(found)
    missing = Counter(f"{p.call}" + ("" if p.group == "dp" else f" on {p.group}") for p in left)
    more = Counter(f"{call}{_on(c)}" for c, call in extra)
    texts = [f"missing {n} x {what}" for what, n in sorted(missing.items())]
    texts += [f"{n} x {what} that the plan does not have" for what, n in sorted(more.items())]
    return _Differences(tuple(texts), certain=not _rearranged(left, extra))


def _rearranged(left: Sequence[_Planned], extra: Sequence[tuple[RankCollective, Call]]) -> bool:
    """Whether what was seen beyond the plan may be what is missing of it: the same bytes of an operation in other pieces,
    or gathers that were called ahead, among the same ranks as far as they are known."""
    wanted, called = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for p in left:
        wanted[_kind(p.call)] += p.call.size_bytes
    for c, call in extra:
        if c.size_bytes is None or not any(_kind(p.call) == _kind(call) and p.may_be(c) for p in left):
            return False
        called[_kind(call)] += call.size_bytes
    return wanted == called


def _kind(call: Call) -> tuple[str, str]:
    return call.op, "" if call.op in _AHEAD else call.phase


def _on(seen: RankCollective) -> str:
    if seen.group is not None and seen.group.description:
        return f" on {seen.group.description}"
    return f" on {seen.group_size} ranks" if seen.group_size is not None else ""
