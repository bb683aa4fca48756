"""Time inside a CPU rank's operators that is their calling: operators as short as their call, and Python's own dispatch."""

from __future__ import annotations

import numpy as np

from stepscope.traces.events import NONE, Category, Events
from stepscope.traces.host_marks import COMM_LAUNCHES, step_marks
from stepscope.traces.nesting import nest

DISPATCH_NS = 5_000
"""An operator on the CPU that takes no longer has computed next to nothing: the dispatcher alone takes 1 to 4 us."""

_IN_PYTHON = ("PythonSubclass", "Redistribute", "_ToTorchTensor", "_FromTorchTensor")
"""How operators begin that run Python inside: subclasses of tensors, DTensor's conversions."""


def host_dispatch(events: Events) -> tuple[int, int, int]:
    """Of the thread of the training loop, within the steps where they are marked: how many operators are as short as their
    call; their time with that of Python's dispatch, ns; and how many operators are in no other."""
    operators = events.where(Category.CPU_OP)
    operators = operators[~events.named(lambda n: n.startswith("gloo:"))[operators]]
    if not len(operators):
        return 0, 0, 0
    main = np.bincount(events.thread[operators], weights=events.dur_ns[operators]).argmax()
    operators = operators[events.thread[operators] == main]
    marks = step_marks(events)
    if len(marks):
        starts = events.ts_ns[operators]
        operators = operators[(starts >= marks.starts[0]) & (starts < marks.ends.max())]
    lane = np.zeros(len(operators), dtype=np.int8)
    tree = nest(operators, lane, events.ts_ns[operators], events.end_ns[operators])
    top = (tree.parent == NONE) & ~events.named(lambda n: n.startswith(COMM_LAUNCHES))[tree.index]
    short = top & (tree.ends - tree.starts <= DISPATCH_NS)
    python = events.named(lambda n: n.startswith(_IN_PYTHON))[tree.index] & ~short
    spent = int((tree.ends - tree.starts)[short].sum() + tree.self_ns[python].sum())
    return int(short.sum()), spent, int(top.sum())
