"""What the threads of a rank without a device did: computing, communicating, or blocked until a collective was done.

On CPU ranks the training thread runs the work itself. It shows as operators; a wait for gloo shows as nothing, or as the
time of an operator that only holds others (a node of autograd with FSDP's hooks in it). A wait is told by its end: the
thread goes on with its next operator after a collective of gloo has ended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.stats import spans
from stepscope.stats.spans import Spans, distinct
from stepscope.traces.events import Category, Events, Ints
from stepscope.traces.kernel_names import Work
from stepscope.traces.passes import COMM_LAUNCHES, comm_calls, loading_marks, step_marks

_COMPILED = ("CompiledFunction", "Torch-Compiled", "## Call CompiledFx", "TorchDynamo", "Pregraph")
"""How operators of compiled code begin: its kernels are not recorded, so that their own time is computation."""

_HOOKS = ("FSDP::", "FullyShardedDataParallel._")
"""How annotations begin inside which a framework moves shards and computes nothing itself."""

_ON_THE_CALLERS_THREAD = ("gloo:send", "gloo:recv")
"""Their spans overlap what the thread that called them does meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWork:
    """Class of every event (classify.Work), when any thread computes, and when the rank communicates. marked: from the
    first step's mark to the end of the last; None without marks."""

    work: NDArray[np.int8]
    compute: Spans
    comm: Spans
    marked: tuple[int, int] | None


def cpu_work(events: Events) -> CpuWork:
    """Communication: spans of gloo's threads, and the time in which the thread that calls collectives is blocked on one.
    Compute: operators that are neither calls nor inside gloo's spans nor inside the data loader on the same thread
    (collation and augmentation are data time), without the time that they are blocked.
    """
    names = np.zeros(len(events.names), dtype=np.int8)
    for code, name in enumerate(events.names):
        names[code] = 2 if name.startswith("gloo:") else 1 if name.startswith(COMM_LAUNCHES) else 0
    kind = names[events.name]
    work = np.zeros(len(events), dtype=np.int8)
    gloo = np.flatnonzero((kind == 2) & np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP)))
    operators = np.flatnonzero((events.category == Category.CPU_OP) & (kind == 0))
    moved = gloo[~events.named(lambda n: n.startswith(_ON_THE_CALLERS_THREAD))[gloo]]
    elsewhere = np.concatenate([np.flatnonzero(loading_marks(events)), moved])
    operators = operators[~_begin_inside(events, operators, elsewhere)]
    work[operators] = Work.COMPUTE
    work[gloo] = Work.COMMUNICATION
    called = comm_calls(events)
    waits = _waits(events, operators, called, gloo)
    comm = spans.union(events.ts_ns[gloo], events.end_ns[gloo])
    marks = step_marks(events)
    return CpuWork(
        work=work,
        compute=spans.subtract(_in_operators(events, operators, called), waits),
        comm=spans.join(comm, waits),
        marked=(int(marks.starts[0]), int(marks.ends.max())) if len(marks) else None,
    )


def _in_operators(events: Events, operators: Ints, calls: Ints) -> Spans:
    """When any thread of the CPU is in an operator and not, inside it, in a call of a collective or a wait for one."""
    parts = []
    for thread in distinct(events.thread[operators]).tolist():
        mine, held = operators[events.thread[operators] == thread], calls[events.thread[calls] == thread]
        within = spans.union(events.ts_ns[mine], events.end_ns[mine])
        parts.append(spans.subtract(within, spans.union(events.ts_ns[held], events.end_ns[held])))
    return spans.join(*parts)


def _waits(events: Events, operators: Ints, calls: Ints, gloo: Ints) -> Spans:
    """When the rank is blocked on a collective: no thread is in an operator that computes, in a call or loading data, and
    the next one of these begins after one of gloo's spans has ended; until the end of the last such span.

    Inside an operator that holds others, and inside a framework's hook, until that next one: little but waking up is done
    there. Operators that compute are never cut: what ends while they run was not waited for.
    """
    ends = np.sort(events.end_ns[gloo])
    holds = events.named(_only_holds)[operators]
    working = np.concatenate([operators[~holds], calls, np.flatnonzero(loading_marks(events))])
    hooks = (events.category == Category.USER_ANNOTATION) & events.named(lambda n: n.startswith(_HOOKS))
    around = np.concatenate([operators[holds], np.flatnonzero(hooks)])
    busy = spans.union(events.ts_ns[working], events.end_ns[working])
    outer = spans.union(events.ts_ns[around], events.end_ns[around])
    if not len(ends) or not len(calls) or not len(busy):
        return spans.EMPTY
    holes = spans.gaps(busy, low=int(busy.starts[0]), high=int(max(busy.ends[-1], ends[-1])))
    before = np.searchsorted(ends, holes.ends, side="right") - 1
    hit = (before >= 0) & (ends[np.maximum(before, 0)] > holes.starts)
    last, until = ends[before[hit]], ends[before[hit]].copy()
    if len(outer):
        at = np.maximum(np.searchsorted(outer.starts, last, side="right") - 1, 0)
        within = (outer.starts[at] <= last) & (last < outer.ends[at])
        until[within] = np.minimum(outer.ends[at], holes.ends[hit])[within]
    return spans.union(holes.starts[hit], until)


def _only_holds(name: str) -> bool:
    """Whether operators of this name compute nothing in their own time: nodes and functions of autograd, Python's
    dispatch. What has a namespace computes."""
    return name.startswith("autograd::engine") or ("::" not in name and not name.startswith(_COMPILED))


def _within(marks: Spans, times: Ints) -> NDArray[np.bool_]:
    at = np.searchsorted(marks.starts, times, side="right") - 1
    return np.asarray((at >= 0) & (times < marks.ends[np.maximum(at, 0)]), dtype=np.bool_)


def _begin_inside(events: Events, operators: Ints, marks: Ints) -> NDArray[np.bool_]:
    """Which of these operators begin inside one of the marks of their own thread."""
    inside = np.zeros(len(operators), dtype=bool)
    for thread in distinct(events.thread[marks]).tolist():
        mine = marks[events.thread[marks] == thread]
        marked = spans.union(events.ts_ns[mine], events.end_ns[mine])
        here = np.flatnonzero(events.thread[operators] == thread)
        if len(marked):
            inside[here] = _within(marked, events.ts_ns[operators[here]])
    return inside
