"""Tensor parallelism layer by layer: what each layer's collectives carry, and how much of it nothing hid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_units import DividedLayers, LayerCall
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.events import RankTrace
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
    tensor = {g.group for g in groups if g.kind == "tp"}
    calls = [c for c in collectives if c.launch_ns is not None and (c.group.name if c.group else "") in tensor]
    if not calls:
        return None
    calls.sort(key=lambda c: c.launch_ns or 0)
    plan = _plan(trace)
    rows: list[LayerCall] = []
    named = False
    for _, same_step in groupby(calls, key=lambda c: c.step):
        mine = list(same_step)
        back = (pass_at(phases, np.array([c.launch_ns for c in mine], dtype=np.int64)) == BACKWARD).tolist()
        if [(c.op, c.size_bytes) for c in mine] == [(op, size) for op, size, _ in plan]:
            layers: Sequence[str | None] = [layer_of(module) for _, _, module in plan]
            named = True
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


def _plan(trace: RankTrace) -> list[tuple[str, int, str]]:
    """Operation, bytes and module of each planned call of the tensor-parallel group."""
    plan: Any = trace.meta.stepscope.get("communication_plan")
    return [
        (str(op["op"]), int(op["numel"]) * DTYPE_BYTES[str(op["dtype"])], str(op.get("module", "")))
        for op in (plan if isinstance(plan, list) else ())
        if op.get("group") == "tp"
    ]


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
