"""A window whose last steps were recorded for their shapes alone: they give them to the steps before, and go.

Recording shapes makes a step longer, so that their times are not the job's. A step that calls operators of a name as often
as each of these steps did has their shapes, call by call, where these steps agree in them: a job whose batches differ in
length has shapes that no step gives to another. Products of matrices have them in all steps or in none, so that FLOP of a
step are those of whole steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.traces.events import NONE, Category, Events, Ints, selected
from stepscope.traces.marks import step_marks
from stepscope.traces.operators import MATRIX_PRODUCTS, WITH_SCALARS
from stepscope.traces.passes import COMM_LAUNCHES


def without_sampled(events: Events, first: int) -> Events:
    """The steps before ``ProfilerStep#first``, with the shapes of those from it on. O(n log n)."""
    marks = step_marks(events)
    rich = marks.numbers >= first
    if not rich.any() or rich.all():
        return events
    begin = int(marks.starts[rich].min())
    kept = events.ts_ns < begin
    shape, source = events.shape.copy(), np.full(len(events), NONE, dtype=np.int64)
    spans = [
        _calls_by_name(events, a, b)
        for a, b in zip(marks.starts[rich].tolist(), marks.ends[rich].tolist(), strict=True)
    ]
    agreed = _agreed_calls(events, spans)
    starts = marks.starts[~rich].tolist()
    steps = [_calls_by_name(events, start, end) for start, end in zip(starts, [*starts[1:], begin], strict=True)]
    products = {name for name in agreed if events.names[name] in MATRIX_PRODUCTS or events.names[name] in WITH_SCALARS}
    if any(len(step.get(name, ())) != len(agreed[name]) for step in steps for name in products):
        agreed = {name: calls for name, calls in agreed.items() if name not in products}
    for step in steps:
        for name, giving in agreed.items():
            called = step.get(name)
            if called is not None and len(called) == len(giving):
                taking = shape[called] == NONE
                shape[called[taking]] = shape[giving[taking]]
                source[called[taking]] = giving[taking]
    return selected(replace(events, shape=shape), kept, source)


def _calls_by_name(events: Events, start: int, end: int) -> dict[int, Ints]:
    """Map an operator's name to its calls that begin in [start, end), in order."""
    inside = (events.ts_ns >= start) & (events.ts_ns < end)
    chosen = events.by_start(inside & events.of(Category.CPU_OP, Category.USER_ANNOTATION))
    names = events.name[chosen]
    order = np.argsort(names, kind="stable")
    borders = np.flatnonzero(np.diff(names[order])) + 1
    return {int(names[part[0]]): chosen[part] for part in np.split(order, borders) if len(part)}


def _agreed_calls(events: Events, steps: list[dict[int, Ints]]) -> dict[int, Ints]:
    """Map an operator's name to its calls in the last of these steps, where all call it as often and with the same shapes.

    Where one operator that computes differs, no operator that computes is in it: a part of a step's FLOP is no figure.
    """
    last = steps[-1]
    same = {
        name
        for name, calls in last.items()
        if all(np.array_equal(events.shape[step[name]], events.shape[calls]) for step in steps if name in step)
        and all(name in step for step in steps)
    }
    shaped = {name for name, calls in last.items() if (events.shape[calls] != NONE).any()}
    sent = {name for name in shaped if events.names[name].startswith(COMM_LAUNCHES)}
    given = shaped & same
    return {name: last[name] for name in (given if shaped - sent <= given else given & sent)}
