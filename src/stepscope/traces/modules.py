"""Time, communication and memory by module of the model, from the ranges that mark module calls.

Ranges: ``module: layers.3.mlp`` (`stepscope profile --modules`), else torch's own ``nn.Module: Linear_3`` (with_stack=True).
What runs in a module's forward pass belongs to the innermost module; what autograd runs belongs to the module of the
operator that it differentiates, by the sequence number that both carry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable
from stepscope.records.trace_work import ModuleRow
from stepscope.traces.activity import Activity
from stepscope.traces.classify import Work, work_of
from stepscope.traces.events import NONE, Category, Events, RankTrace
from stepscope.traces.links import Launches
from stepscope.traces.nesting import Nest, nest, sums
from stepscope.traces.passes import AUTOGRAD

Ints = NDArray[np.int64]

MARKS = ((Category.USER_ANNOTATION, "module: "), (Category.PYTHON, "nn.Module: "))


def module_rows(trace: RankTrace, activity: Activity, launches: Launches) -> tuple[ModuleRow, ...] | Unavailable:
    """The rank's modules by time, longest first; each with what it runs itself, without the modules inside it.

    On a GPU times are the device's, of what was launched; on CPU traces the operators' own.
    """
    events = trace.events
    found = next(((found, mark) for category, mark in MARKS if len(found := _marked(events, category, mark))), None)
    if found is None:
        return Unavailable("no ranges of modules: `stepscope profile --modules` or with_stack=True record them")
    chosen, mark = found
    names = [name.removeprefix(mark) for name in events.names]
    tree = nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])
    on_device = activity.source == "device"
    work, host = _device_work(launches, events) if on_device else _operators(events)
    forward, backward = _modules_of(events, tree, host)
    kinds = work_of(events)[work] if on_device else None
    duration = events.dur_ns[work]
    count = len(events.names)
    code = events.name[tree.index]

    def total(owner: Ints, which: NDArray[np.bool_] | None = None) -> Ints:
        mine = owner != NONE if which is None else (owner != NONE) & which
        return sums(code[owner[mine]], duration[mine], count)

    comm = (kinds == Work.COMMUNICATION) if kinds is not None else None
    computing = None if comm is None else ~comm
    there, back = total(forward, computing), total(backward, computing)
    sent = None if comm is None else total(forward, comm) + total(backward, comm)
    kept = _kept(events, tree, code, count)
    calls = np.bincount(code, minlength=count)
    used = np.flatnonzero(calls)
    order = used[np.argsort(-(there + back)[used], kind="stable")]
    return tuple(
        ModuleRow(
            rank=trace.rank,
            module=names[i],
            calls=int(calls[i]),
            forward_ns=int(there[i]),
            backward_ns=int(back[i]),
            comm_ns=None if sent is None else int(sent[i]),
            kept_bytes=None if kept is None else int(kept[i]),
        )
        for i in order.tolist()
    )


def _marked(events: Events, category: Category, mark: str) -> Ints:
    return np.flatnonzero((events.category == category) & events.named(lambda name: name.startswith(mark)))


def _device_work(launches: Launches, events: Events) -> tuple[Ints, Ints]:
    """Device events and the host calls that launched them."""
    known = launches.known & events.is_device[launches.of]
    return launches.of[known], launches.launch[known]


def _operators(events: Events) -> tuple[Ints, Ints]:
    """Operators that are inside no other, which are their own calls."""
    chosen = events.where(Category.CPU_OP)
    tree = nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])
    roots = tree.index[tree.parent == NONE].astype(np.int64)
    return roots, roots


def _modules_of(events: Events, tree: Nest, host: Ints) -> tuple[Ints, Ints]:
    """Position of the module of each host call: of one in a forward pass, and of one that autograd made; else NONE."""
    threads, times = events.thread[host].astype(np.int64), events.ts_ns[host]
    autograd = _marked(events, Category.CPU_OP, AUTOGRAD)
    engine = nest(autograd, events.thread[autograd], events.ts_ns[autograd], events.end_ns[autograd])
    inside = engine.innermost(threads, times)
    forward = tree.innermost(threads, times)
    forward[inside != NONE] = NONE
    backward = np.full(len(host), NONE, dtype=np.int64)
    mine = np.flatnonzero(inside != NONE)
    sequence = events.sequence[engine.index[inside[mine]]]
    sources = np.flatnonzero(
        (events.category == Category.CPU_OP) & (events.sequence != NONE) & (events.forward_thread <= 0)
    )
    owner = tree.innermost(events.thread[sources].astype(np.int64), events.ts_ns[sources])
    sources, owner = sources[owner != NONE], owner[owner != NONE]
    if len(sources) and len(mine):
        order = np.argsort(events.sequence[sources], kind="stable")
        known = events.sequence[sources][order]
        place = np.minimum(np.searchsorted(known, sequence), len(known) - 1)
        hit = known[place] == sequence
        backward[mine[hit]] = owner[order[place[hit]]]
    return forward, backward


def _kept(events: Events, tree: Nest, code: NDArray[np.integer[Any]], count: int) -> Ints | None:
    """Bytes that each module's calls allocated and did not release; None without memory events.

    Memory events do not name their thread: those of the thread with most module calls count.
    """
    memory = events.memory
    if memory is None or not len(memory):
        return None
    main = int(np.argmax(np.bincount(tree.thread)))
    owner = tree.innermost(np.full(len(memory), main, dtype=np.int64), memory.ts_ns)
    return sums(code[owner[owner != NONE]], memory.size_bytes[owner != NONE], count)
