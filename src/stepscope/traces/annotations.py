"""User annotations (record_function, ProfilerStep): time on the host and the device work launched inside them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_work import AnnotationRow
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, RankTrace
from stepscope.traces.links import Launches
from stepscope.traces.nesting import Nest, nest, sums, union_by_group

Ints = NDArray[np.int64]

_STEP = re.compile(r"ProfilerStep#\d+$")


def annotation_rows(trace: RankTrace, launches: Launches, *, limit: int | None = None) -> tuple[AnnotationRow, ...]:
    """The rank's annotations by host time, longest first; empty without any. All ``ProfilerStep#N`` are one row.

    Work launched inside nested annotations counts for each of them, for one name once.
    """
    events = trace.events
    chosen = events.where(Category.USER_ANNOTATION)
    if not len(chosen):
        return ()
    label_of, labels = _labels(events, chosen)
    tree = nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])
    label = label_of[events.name[tree.index]]
    count = len(labels)
    outer = tree.outermost_of(label)
    host = sums(label[outer], (tree.ends - tree.starts)[outer], count)

    work, owner = _launched_inside(events, launches, tree)
    pair_label, pair_work = _labels_around(tree, label, work, owner)
    spent = sums(pair_label, events.dur_ns[pair_work], count)
    busy = union_by_group(pair_label, events.ts_ns[pair_work], events.end_ns[pair_work], count=count)
    launched = np.bincount(pair_label, minlength=count)
    spans_ns, has_span = _device_spans(events, label_of, count)
    calls = np.bincount(label, minlength=count)
    ranked = np.lexsort((np.arange(count), -host))
    return tuple(
        AnnotationRow(
            rank=trace.rank,
            name=labels[i],
            calls=int(calls[i]),
            host_ns=int(host[i]),
            device_ns=int(spent[i]),
            device_busy_ns=int(busy[i]),
            device_events=int(launched[i]),
            device_span_ns=int(spans_ns[i]) if has_span[i] else None,
        )
        for i in ranked[:limit].tolist()
    )


def _labels(events: Events, chosen: Ints) -> tuple[Ints, list[str]]:
    """Row of every name code (NONE: no annotation), and the text of every row."""
    rows: dict[str, int] = {}
    table = np.full(len(events.names), NONE, dtype=np.int64)
    for code in distinct(events.name[chosen]).tolist():
        text = events.names[code]
        text = "ProfilerStep#" if _STEP.match(text) else text
        table[code] = rows.setdefault(text, len(rows))
    return table, list(rows)


def _launched_inside(events: Events, launches: Launches, tree: Nest) -> tuple[Ints, Ints]:
    """Device events launched inside an annotation, and the position of the innermost one.

    What a thread of the autograd engine launches also counts for what is open on the thread that annotates most: it
    waits there for the backward pass. Such an event may stand twice.
    """
    known = launches.known & events.is_device[launches.of]
    work, call = launches.of[known], launches.launch[known]
    threads, times = events.thread[call].astype(np.int64), events.ts_ns[call]
    engine = _engine_threads(events)
    roots = tree.parent == NONE
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


def _engine_threads(events: Events) -> Ints:
    codes = [c for c, n in enumerate(events.names) if n.startswith("autograd::engine::evaluate_function")]
    chosen = (events.category == Category.CPU_OP) & np.isin(events.name, codes)
    return distinct(events.thread[chosen]).astype(np.int64)


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
    known = table != NONE
    chosen, table = chosen[known], table[known]
    has = np.zeros(count, dtype=bool)
    has[table] = True
    return union_by_group(table, events.ts_ns[chosen], events.end_ns[chosen], count=count), has
