"""Whether a traced step communicated as its strategy declared: the same collectives, and overlapped or not.

The spec is the ``comm_plan`` that ``bench --profile`` leaves in the trace. What document 003 asks people to see
by eye, naive synchronisation after the backward pass against overlapped synchronisation inside it, is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_conformance import ConformanceCheck
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.events import Category, Events, RankTrace
from stepscope.traces.steps import step_marks

Call = tuple[str, int]
"""Operation and payload in bytes."""

_MESSAGES = ("send", "recv")
"""A trace calls both ends ``send_recv``, and a schedule decides when they are called."""


def check_plan(trace: RankTrace, collectives: Sequence[RankCollective]) -> ConformanceCheck | None:
    """The check of one rank's trace, over the steps recorded whole; None when the trace carries no plan.

    A step's collectives are those launched between its annotation's start and the next one's.
    """
    plan = trace.meta.stepscope.get("communication_plan")
    if not isinstance(plan, list):
        return None
    marks = step_marks(trace.events)
    planned = Counter(_planned(op) for op in plan)
    early = sum(_phase(op) == "backward" and op["op"] not in _MESSAGES for op in plan)
    backward = _region(trace.events, "stepscope.backward")
    launched = [c for c in collectives if c.launch_ns is not None]
    differences: list[str] = []
    inside = 0
    for number, start, end in zip(marks.numbers.tolist(), marks.starts.tolist(), marks.ends.tolist(), strict=True):
        mine = [c for c in launched if c.launch_ns is not None and start <= c.launch_ns < end]
        seen = Counter((c.op, c.size_bytes if c.size_bytes is not None else -1) for c in mine)
        differences += [f"step {number}: {text}" for text in _differences(planned, seen)]
        inside += sum(_within(backward, c) for c in mine)
    overlapped = early > 0
    if overlapped and len(marks) and not inside:
        differences.append("no collective was launched inside the backward pass, as the plan requires")
    if not overlapped and inside:
        differences.append(f"{inside} collectives were launched inside the backward pass; the plan has none there")
    return ConformanceCheck(
        rank=trace.rank,
        strategy=str(trace.meta.stepscope.get("strategy", "")),
        steps=len(marks),
        planned_per_step=sum(planned.values()),
        launched_in_backward=inside,
        overlap_planned=overlapped,
        holds=not differences if len(marks) else None,
        differences=tuple(differences),
    )


def _region(events: Events, name: str) -> Spans:
    mine = (events.category == Category.USER_ANNOTATION) & events.named(lambda n: n == name)
    return spans.union(events.ts_ns[mine], events.end_ns[mine])


def _planned(op: Mapping[str, Any]) -> Call:
    name = "send_recv" if op["op"] in _MESSAGES else str(op["op"])
    return name, int(op["numel"]) * DTYPE_BYTES[str(op["dtype"])]


def _phase(op: Mapping[str, Any]) -> str:
    return str(op.get("phase", ""))


def _differences(planned: Counter[Call], seen: Counter[Call]) -> list[str]:
    """In words: what is missing, what is too much."""
    texts = [f"missing {n} x {op} of {size} bytes" for (op, size), n in sorted((planned - seen).items())]
    return texts + [
        f"{n} x {op} of {'unknown size' if size < 0 else f'{size} bytes'} that the plan does not have"
        for (op, size), n in sorted((seen - planned).items())
    ]


def _within(backward: Spans, collective: RankCollective) -> int:
    at = collective.launch_ns
    return 0 if at is None else int(spans.clip(backward, low=at, high=at + 1).measure > 0)
