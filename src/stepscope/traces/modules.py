"""Time, communication and memory by module of the model, from the ranges that mark module calls.

Ranges: ``module: layers.3.mlp`` (`stepscope profile --modules`), else torch's own ``nn.Module: Linear_3`` (with_stack=True).
What runs in a module's forward pass belongs to the innermost module; what autograd runs belongs to the module of the
operator that it differentiates, by the sequence number that both carry.

Tensor parallelism layer by layer: what each layer's collectives carry, and how much of it nothing hid.

User annotations (record_function, ProfilerStep): time on the host and the device work launched inside them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import DividedLayers, LayerCall
from stepscope.records.trace_work import AnnotationRow, ModuleRow
from stepscope.stats.spans import distinct
from stepscope.traces.activity import activity_of
from stepscope.traces.classes import work_of
from stepscope.traces.collectives import communication, group_budgets
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, column
from stepscope.traces.groups import UNNAMED, group_name
from stepscope.traces.kernel_names import Work
from stepscope.traces.launches import launches_of
from stepscope.traces.nesting import Nest, find, nest_events, sums, union_by_group
from stepscope.traces.passes import autograd_nodes
from stepscope.traces.steps import BACKWARD, pass_at, phases_of
from stepscope.traces.units import by_order

MARKS = ((Category.USER_ANNOTATION, "module: "), (Category.PYTHON, "nn.Module: "))


def module_rows(view: RankView) -> tuple[ModuleRow, ...] | Unavailable:
    """The rank's modules by time, longest first; each with what it runs itself, without the modules inside it.

    On a GPU times are the device's, of what was launched; on CPU traces the operators' own.
    """
    events = view.events
    first = next(
        ((ranges, mark) for category, mark in MARKS if len(ranges := _marked_events(events, category, mark))), None
    )
    if first is None:
        return Unavailable("no ranges of modules: `stepscope profile --modules` or with_stack=True record them")
    chosen, mark = first
    names = [name.removeprefix(mark) for name in events.names]
    tree = nest_events(events, chosen)
    on_device = activity_of(view).source == "device"
    work, host = _device_work(view) if on_device else _outer_operators(events)
    forward, backward = _modules_of(events, tree, host)
    kinds = work_of(view)[work] if on_device else None
    duration = events.dur_ns[work]
    count = len(events.names)
    code = events.name[tree.index]

    def total(owner: Ints, which: NDArray[np.bool_] | None = None) -> Ints:
        owned = owner != NONE if which is None else (owner != NONE) & which
        return sums(code[owner[owned]], duration[owned], count)

    comm = (kinds == Work.COMMUNICATION) if kinds is not None else None
    computing = None if comm is None else ~comm
    there, back = total(forward, computing), total(backward, computing)
    sent = None if comm is None else total(forward, comm) + total(backward, comm)
    kept = _kept_bytes(events, tree, code, count)
    calls = np.bincount(code, minlength=count)
    used = np.flatnonzero(calls)
    order = used[np.argsort(-(there + back)[used], kind="stable")]
    return tuple(
        ModuleRow(
            rank=view.rank,
            module=names[i],
            calls=int(calls[i]),
            forward_ns=int(there[i]),
            backward_ns=int(back[i]),
            comm_ns=None if sent is None else int(sent[i]),
            kept_bytes=None if kept is None else int(kept[i]),
        )
        for i in order.tolist()
    )


def _marked_events(events: Events, category: Category, mark: str) -> Ints:
    return np.flatnonzero((events.category == category) & events.begins(mark))


def _device_work(view: RankView) -> tuple[Ints, Ints]:
    """Device events and the host calls that launched them."""
    launches = launches_of(view)
    linked = launches.linked & view.events.is_device[launches.of]
    return launches.of[linked], launches.launch[linked]


def _outer_operators(events: Events) -> tuple[Ints, Ints]:
    """Operators that are inside no other, which are their own calls."""
    chosen = events.where(Category.CPU_OP)
    tree = nest_events(events, chosen)
    roots = tree.index[tree.parent == NONE].astype(np.int64)
    return roots, roots


def _modules_of(events: Events, tree: Nest, host: Ints) -> tuple[Ints, Ints]:
    """Return the position of each host call's module, for calls in a forward pass and for autograd's; else NONE."""
    threads, times = events.thread[host].astype(np.int64), events.ts_ns[host]
    engine = nest_events(events, np.flatnonzero(autograd_nodes(events)))
    inside = engine.innermost(threads, times)
    forward = tree.innermost(threads, times)
    forward[inside != NONE] = NONE
    backward = np.full(len(host), NONE, dtype=np.int64)
    engine_calls = np.flatnonzero(inside != NONE)
    sequence = events.sequence[engine.index[inside[engine_calls]]]
    sources = np.flatnonzero(
        (events.category == Category.CPU_OP) & (events.sequence != NONE) & (events.forward_thread <= 0)
    )
    owner = tree.innermost(events.thread[sources].astype(np.int64), events.ts_ns[sources])
    sources, owner = sources[owner != NONE], owner[owner != NONE]
    place = find(events.sequence[sources], sequence)
    backward[engine_calls[place != NONE]] = owner[place[place != NONE]]
    return forward, backward


def _kept_bytes(events: Events, tree: Nest, code: NDArray[np.integer[Any]], count: int) -> Ints | None:
    """Bytes that each module's calls allocated and did not release; None without memory events.

    Memory events do not name their thread: those of the thread with most module calls count.
    """
    memory = events.memory
    if memory is None or not len(memory):
        return None
    main = int(np.argmax(np.bincount(tree.thread)))
    owner = tree.innermost(np.full(len(memory), main, dtype=np.int64), memory.ts_ns)
    return sums(code[owner[owner != NONE]], memory.size_bytes[owner != NONE], count)


_LAYER = re.compile(r".*?\.\d+(?=\.|$)")


def divided_layers(view: RankView) -> DividedLayers | None:
    """The collectives of the rank's tensor-parallel groups; None where there is no such group.

    A step whose calls are those of the plan that ``bench --profile`` leaves in the trace has the plan's names. Others are
    numbered by the forward pass; the backward pass visits them in reverse.
    """
    plan = _planned_calls(view)
    tensor = {g.group for g in group_budgets(view) if g.kind == "tp"} | ({UNNAMED} if plan else set())
    calls = [c for c in communication(view).collectives if c.launch_ns is not None and group_name(c) in tensor]
    if not calls:
        return None
    calls.sort(key=lambda c: c.launch_ns or 0)
    rows: list[LayerCall] = []
    named = False
    for _, same_step in groupby(calls, key=lambda c: c.step):
        step_calls = list(same_step)
        back = (pass_at(phases_of(view), column(step_calls, "launch_ns")) == BACKWARD).tolist()
        ops = _plan_places(step_calls, [p for p in plan if p.group == "tp"]) or _plan_places(step_calls, plan)
        if ops:
            named = True
            rows += [
                _layer_call(c, layer_of(p.module), back=b)
                for c, p, b in zip(step_calls, ops, back, strict=True)
                if p.group == "tp"
            ]
        else:
            layers = by_order(step_calls, back, word="call")
            rows += [_layer_call(c, layer, back=b) for c, layer, b in zip(step_calls, layers, back, strict=True)]
    return DividedLayers(
        rank=view.rank,
        named_by="plan" if named else "order",
        source=activity_of(view).source,
        group_size=next((c.group_size for c in calls if c.group_size), None),
        calls=tuple(rows),
    )


def layer_of(module: str) -> str:
    """``blocks.3`` for ``blocks.3.attention_out``; a module outside a list stands for itself."""
    match = _LAYER.match(module)
    return match[0] if match else module


class _Op(NamedTuple):
    op: str
    size_bytes: int
    group: str
    module: str


def _planned_calls(view: RankView) -> list[_Op]:
    """The planned calls of a step; nothing where none is of a tensor-parallel group."""
    plan: Any = view.meta.stepscope.get("communication_plan")
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


def _plan_places(calls: Sequence[RankCollective], plan: Sequence[_Op]) -> list[_Op]:
    """Each call's place in the plan, whose groups take turns as they like; nothing where they are not the same calls."""
    waiting: dict[tuple[str, int | None], deque[_Op]] = defaultdict(deque)
    for op in plan:
        waiting[op.op, op.size_bytes].append(op)
    if len(calls) != len(plan) or Counter((c.op, c.size_bytes) for c in calls) != {
        k: len(v) for k, v in waiting.items()
    }:
        return []
    return [waiting[c.op, c.size_bytes].popleft() for c in calls]


def _layer_call(call: RankCollective, layer: str | None, *, back: bool) -> LayerCall:
    """Return the row of one call. back: it is of the backward pass."""
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


_STEP = re.compile(r"ProfilerStep#\d+$")


def annotation_rows(view: RankView) -> tuple[AnnotationRow, ...]:
    """The rank's annotations by host time, longest first; empty without any. All ``ProfilerStep#N`` are one row.

    Work launched inside nested annotations counts for each of them, for one name once.
    """
    events = view.events
    chosen = events.where(Category.USER_ANNOTATION)
    if not len(chosen):
        return ()
    label_of, labels = _name_labels(events, chosen)
    tree = nest_events(events, chosen)
    label = label_of[events.name[tree.index]]
    count = len(labels)
    outer = tree.outermost_of(label)
    host = sums(label[outer], (tree.ends - tree.starts)[outer], count)

    work, owner = launched_inside(view, tree)
    pair_label, pair_work = _labels_around(tree, label, work, owner)
    spent = sums(pair_label, events.dur_ns[pair_work], count)
    busy = union_by_group(pair_label, events.ts_ns[pair_work], events.end_ns[pair_work], count=count)
    launched = np.bincount(pair_label, minlength=count)
    spans_ns, has_span = _device_spans(events, label_of, count)
    calls = np.bincount(label, minlength=count)
    ranked = np.lexsort((np.arange(count), -host))
    return tuple(
        AnnotationRow(
            rank=view.rank,
            name=labels[i],
            calls=int(calls[i]),
            host_ns=int(host[i]),
            device_ns=int(spent[i]),
            device_busy_ns=int(busy[i]),
            device_events=int(launched[i]),
            device_span_ns=int(spans_ns[i]) if has_span[i] else None,
        )
        for i in ranked.tolist()
    )


def _name_labels(events: Events, chosen: Ints) -> tuple[Ints, list[str]]:
    """Row of every name code (NONE: no annotation), and the text of every row."""
    rows: dict[str, int] = {}
    table = np.full(len(events.names), NONE, dtype=np.int64)
    for code in distinct(events.name[chosen]).tolist():
        text = events.names[code]
        text = "ProfilerStep#" if _STEP.match(text) else text
        table[code] = rows.setdefault(text, len(rows))
    return table, list(rows)


def launched_inside(view: RankView, tree: Nest) -> tuple[Ints, Ints]:
    """Device events launched inside an annotation, and the position of the innermost one.

    What a thread of the autograd engine launches also counts for what is open on the thread that annotates most: it
    waits there for the backward pass. Such an event may stand twice.
    """
    events = view.events
    work, call = _device_work(view)
    threads, times = events.thread[call].astype(np.int64), events.ts_ns[call]
    engine = distinct(events.thread[autograd_nodes(events)]).astype(np.int64)
    roots = tree.parent == NONE
    if not roots.any():
        return work[:0], work[:0]
    by_thread = np.bincount(tree.thread[roots], weights=(tree.ends - tree.starts)[roots])
    by_thread[engine[engine < len(by_thread)]] = 0
    main = int(np.argmax(by_thread))
    behalf = np.isin(threads, engine[engine != main])
    owner = np.concatenate(
        [tree.innermost(threads, times), tree.innermost(np.full(int(behalf.sum()), main), times[behalf])]
    )
    work = np.concatenate([work, work[behalf]])
    inside = owner != NONE
    return work[inside], owner[inside]


def _labels_around(tree: Nest, label: Ints, work: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """Every (label, work) such that an annotation of that label is around the work; each pair once."""
    found_labels, found_work = [], []
    while len(work):
        found_labels.append(label[owner])
        found_work.append(work)
        above = tree.parent[owner]
        more = above != NONE
        work, owner = work[more], above[more]
    if not found_labels:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    labels, works = np.concatenate(found_labels), np.concatenate(found_work)
    width = int(works.max()) + 1
    pairs = distinct(labels * width + works)
    return pairs // width, pairs % width


def _device_spans(events: Events, label_of: Ints, count: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Time covered by the profiler's own device-side annotations of each label; and whether there are any."""
    chosen = events.where(Category.GPU_ANNOTATION)
    table = label_of[events.name[chosen]]
    labelled = table != NONE
    chosen, table = chosen[labelled], table[labelled]
    has = np.zeros(count, dtype=bool)
    has[table] = True
    return union_by_group(table, events.ts_ns[chosen], events.end_ns[chosen], count=count), has
