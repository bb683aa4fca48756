"""Tensor parallelism layer by layer: what each layer's collectives carry, and how much of it nothing hid."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import DividedLayers, LayerCall
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.events import RankTrace
from stepscope.traces.group_budget import UNNAMED
from stepscope.traces.phases import BACKWARD, pass_at
from stepscope.traces.units import by_order

_LAYER = re.compile(r".*?\.\d+(?=\.|$)")


def divided_layers(
    trace: RankTrace,
    activity: Activity,
    phases: dict[str, Spans],
    collectives: Sequence[RankCollective],
    groups: Sequence[GroupBudget],
) -> DividedLayers | None:
    """The collectives of the rank's tensor-parallel groups; None where there is no such group.

    A step whose calls are those of the plan that ``bench --profile`` leaves in the trace has the plan's names. Others are
    numbered by the forward pass; the backward pass visits them in reverse.
    """
    plan = _plan(trace)
    tensor = {g.group for g in groups if g.kind == "tp"} | ({UNNAMED} if plan else set())
    calls = [c for c in collectives if c.launch_ns is not None and (c.group.name if c.group else "") in tensor]
    if not calls:
        return None
    calls.sort(key=lambda c: c.launch_ns or 0)
    rows: list[LayerCall] = []
    named = False
    for _, same_step in groupby(calls, key=lambda c: c.step):
        mine = list(same_step)
        back = (pass_at(phases, np.array([c.launch_ns for c in mine], dtype=np.int64)) == BACKWARD).tolist()
        found = _planned(mine, [p for p in plan if p.group == "tp"]) or _planned(mine, plan)
        if found:
            named = True
            rows += [
                _row(c, layer_of(p.module), back=b)
                for c, p, b in zip(mine, found, back, strict=True)
                if p.group == "tp"
            ]
        else:
            layers = by_order(mine, back, word="call")
            rows += [_row(c, layer, back=b) for c, layer, b in zip(mine, layers, back, strict=True)]
    return DividedLayers(
        rank=trace.rank,
        named_by="plan" if named else "order",
        source=activity.source,
        group_size=next((c.group_size for c in calls if c.group_size), None),
        calls=tuple(rows),
    )


def layer_of(module: str) -> str:
    """``blocks.3`` for ``blocks.3.attention_out``; a module outside a list stands for itself."""
    found = _LAYER.match(module)
    return found[0] if found else module


class _Op(NamedTuple):
    op: str
    size_bytes: int
    group: str
    module: str


def _plan(trace: RankTrace) -> list[_Op]:
    """The planned calls of a step; nothing where none is of a tensor-parallel group."""
    plan: Any = trace.meta.stepscope.get("communication_plan")
    ops = [
        _Op(
            op=str(op["op"]),
            size_bytes=int(op["numel"]) * DTYPE_BYTES[str(op["dtype"])],
            group=str(op.get("group", "")),
            module=str(op.get("module", "")),
        )
        for op in (plan if isinstance(plan, list) else ())
    ]
    return ops if any(op.group == "tp" for op in ops) else []


def _planned(calls: Sequence[RankCollective], plan: Sequence[_Op]) -> list[_Op]:
    """Each call's place in the plan, whose groups take turns as they like; nothing where they are not the same calls."""
    waiting: dict[tuple[str, int | None], deque[_Op]] = defaultdict(deque)
    for op in plan:
        waiting[op.op, op.size_bytes].append(op)
    if len(calls) != len(plan) or Counter((c.op, c.size_bytes) for c in calls) != {
        k: len(v) for k, v in waiting.items()
    }:
        return []
    return [waiting[c.op, c.size_bytes].popleft() for c in calls]


def _row(call: RankCollective, layer: str | None, *, back: bool) -> LayerCall:
    return LayerCall(
        step=call.step,
        layer=layer,
        op=call.op,
        phase="backward" if back else "forward",
        size_bytes=call.size_bytes,
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        exposed_ns=call.exposed_ns,
    )
