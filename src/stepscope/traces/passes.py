"""Which operators outside all marked phases are the forward pass, which evaluate the model, and which are neither.

An operator of the training's forward pass has a node in the backward pass: the node bears its sequence number. Operators
after a backward pass (gradients are divided, clipped, reduced) belong to no pass until the next step, the optimizer or the
next operator with a node begins. A stretch that runs the model's layers and has no node in it is an evaluation.

What annotations and operators of the host mark: loading of data, calls of collectives.

What the threads of a rank without a device did: computing, communicating, or blocked until a collective was done.

On CPU ranks the training thread runs the work itself. It shows as operators; a wait for gloo shows as nothing, or as the
time of an operator that only holds others (a node of autograd with FSDP's hooks in it). A wait is told by its end: the
thread goes on with its next operator after a collective of gloo has ended.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.stats import spans
from stepscope.stats.spans import Spans, distinct
from stepscope.traces.events import Category, Events, Ints
from stepscope.traces.kernel_names import Work
from stepscope.traces.marks import step_marks

COMM_LAUNCHES = (
    "c10d::", "_c10d_functional::", "c10d_functional::", "gloo:", "record_param_comms", "nccl:", "mpi:", "ucc:",
)  # fmt: skip
"""Operators that call a collective or wait for one. On a CPU trace they, and whatever they are nested in, compute nothing
while they run."""


DATA_MARKS = (
    "stepscope.data", "enumerate(DataLoader)", "enumerate(DataPipe)", "DataLoader", "## data",
    "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "[pl][profile]get_train_batch",
)  # fmt: skip
"""How the names of annotations and operators begin inside which data is loaded: torch's, Lightning's, stepscope's."""


_DATA_FUNCTIONS = re.compile(
    r"(?<!tokenize)\.py\(\d+\): (preprocess|collate(_fn|_batch)?|(default|pad)_collate"
    r"|(batch_)?tokeni[sz]e(_batch|_fn|_function)?|_?(batch_)?encode_plus|(read|load|decode)_(image|video|audio|frame)s?(_pyav|_decord|_opencv)?)$"
    r"|((image|video)_processing|feature_extraction(_sequence)?|processing|tokenization)_utils(_base|_fast)?\.py"
    r"\(\d+\): __call__$|torch/utils/data/(dataloader\.py\(\d+\): __next__|_utils/fetch\.py\(\d+\): fetch)$"
)
"""Functions of Python in which inputs are read, decoded, tokenised or batched, as the profiler names them with stacks."""


def comm_calls(events: Events) -> Ints:
    """Operators of the host that call a collective or wait for one, in order of their start."""
    operators = events.category == Category.CPU_OP
    return events.by_start(events.named(lambda n: n.startswith(COMM_LAUNCHES) and not n.startswith("gloo:"), operators))


def loading_marks(events: Events) -> NDArray[np.bool_]:
    """The annotations, operators and functions of Python that mark data loading, shape (len(events),)."""
    marks = events.of(Category.USER_ANNOTATION, Category.CPU_OP) & events.begins(DATA_MARKS)
    marks[loading_functions(events)] = True
    return marks


def loading_functions(events: Events) -> Ints:
    """Functions of Python that load data, by start, on the threads that launch kernels: others load meanwhile."""
    python = np.flatnonzero(events.named(_DATA_FUNCTIONS.search, events.category == Category.PYTHON))
    if not len(python):
        return python
    calls = events.of(Category.RUNTIME, Category.DRIVER)
    if calls.any():
        launching = distinct(events.thread[events.named(lambda name: "Launch" in name, calls)])
        python = python[np.isin(events.thread[python], launching)]
    return python[np.argsort(events.ts_ns[python], kind="stable")]


AUTOGRAD = "autograd::engine::evaluate_function"


def autograd_nodes(events: Events) -> NDArray[np.bool_]:
    """The autograd engine's own operators, one for each node that it runs, shape (len(events),)."""
    return events.of(Category.CPU_OP) & events.begins(AUTOGRAD)


def autograd_work(events: Events) -> NDArray[np.bool_]:
    """The autograd engine's nodes and the operators that they run, shape (len(events),)."""
    return events.of(Category.CPU_OP) & (events.begins(AUTOGRAD) | (events.forward_thread > 0))


_LAYERS = (
    "aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::embedding", "aten::lstm",
    "aten::gru", "aten::_scaled_dot_product",
)  # fmt: skip
"""How operators begin that hold most of a model's work, as they stand in the forward pass and in an evaluation."""

_MOST = 0.8
"""From this share of a forward pass's layers on, a stretch has run the model."""

_BACKWARD = 1


@record
class Passes:
    """Disjoint spans of operators. after_backward: those between a backward pass and what begins next."""

    evaluation: Spans
    after_backward: Spans


def passes_of(events: Events, *, backward: Spans, optimizer: Spans) -> Passes:
    """Tell what the operators outside of these two phases do. O(n log n)."""
    operators = events.by_start(events.category == Category.CPU_OP)
    graph = with_nodes(events)
    marks = step_marks(events)
    starts = np.concatenate([backward.starts, optimizer.starts, marks.starts, events.ts_ns[graph]])
    ends = np.concatenate([backward.ends, optimizer.ends, marks.starts, events.ts_ns[graph]])
    kinds = np.zeros(len(starts), dtype=np.int8)
    kinds[: len(backward)] = _BACKWARD
    with_node = np.zeros(len(starts), dtype=bool)
    with_node[len(starts) - len(graph) :] = True
    order = np.lexsort((ends, starts))
    starts, ends, kinds, with_node = starts[order], ends[order], kinds[order], with_node[order]
    if not len(starts):
        return Passes(evaluation=spans.EMPTY, after_backward=spans.EMPTY)
    last = int(events.end_ns[operators].max()) if len(operators) else int(ends[-1])
    following = np.append(starts[1:], max(last, int(ends[-1])))
    evaluation = _evaluation_spans(events, operators, graph, ends, following, with_node)
    # Without sequence numbers, what lies between two backward passes may be a forward pass.
    forward = np.append(kinds[1:] == _BACKWARD, False) & (len(graph) == 0)
    after = (kinds == _BACKWARD) & ~forward & (following > ends)
    return Passes(
        evaluation=evaluation, after_backward=spans.subtract(spans.union(ends[after], following[after]), evaluation)
    )


def with_nodes(events: Events) -> Ints:
    """Return the forward operators that have a node in a backward pass, by time: of those with the node's number before it,
    the last. What comes after a backward pass shows the number of the operator that is next to get a node."""
    numbered = np.flatnonzero((events.category == Category.CPU_OP) & (events.sequence >= 0))
    node = events.forward_thread[numbered] > 0
    nodes, others = numbered[node], numbered[~node & ~events.begins(AUTOGRAD)[numbered]]
    if not len(nodes) or not len(others):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((events.ts_ns[others], events.sequence[others]))
    others = others[order]
    merged = np.concatenate([others, nodes])
    rank = np.empty(len(merged), dtype=np.int64)
    rank[np.lexsort((np.arange(len(merged)), events.ts_ns[merged], events.sequence[merged]))] = np.arange(len(merged))
    at = np.searchsorted(rank[: len(others)], rank[len(others) :]) - 1
    matched = at >= 0
    matched[matched] &= events.sequence[others[at[matched]]] == events.sequence[nodes[matched]]
    operators = np.flatnonzero(np.bincount(others[at[matched]]))  # distinct ones; np.unique alone would load numpy.ma
    return operators[np.argsort(events.ts_ns[operators], kind="stable")]


def _evaluation_spans(
    events: Events, operators: Ints, graph: Ints, begins: Ints, ends: Ints, with_node: NDArray[np.bool_]
) -> Spans:
    """Stretches [begins[i], ends[i]) between two marks that run most of the model's layers, none with a node; before the
    forward pass of the same step only where most steps have none there: layers that are not trained run in every step."""
    layer = events.begins(_LAYERS)
    trained = graph[layer[graph]]
    if not len(trained):
        return spans.EMPTY
    trained_names = np.zeros(len(events.names), dtype=bool)
    trained_names[events.name[trained]] = True
    stretch = spans.place(begins, ends, events.ts_ns[operators])
    inside, stretch = operators[stretch >= 0], stretch[stretch >= 0]
    runs = (layer & trained_names[events.name])[inside] & ~np.isin(inside, graph)
    count = np.bincount(stretch[runs], minlength=len(begins))
    # Each run of operators with nodes is one forward pass.
    turns = int((np.diff(with_node.astype(np.int8)) == -1).sum()) + int(with_node[-1])
    chosen = count >= max(1.0, _MOST * len(trained) / max(1, turns))
    before_forward = np.append(with_node[1:], False)
    if 2 * int((chosen & before_forward).sum()) > turns:
        chosen &= ~before_forward
    first = np.full(len(begins), np.iinfo(np.int64).max, dtype=np.int64)
    final = np.zeros(len(begins), dtype=np.int64)
    np.minimum.at(first, stretch[runs], events.ts_ns[inside[runs]])
    np.maximum.at(final, stretch, events.end_ns[inside])
    chosen &= final > first
    return spans.union(first[chosen], np.minimum(final, ends)[chosen])


_COMPILED = ("CompiledFunction", "Torch-Compiled", "## Call CompiledFx", "TorchDynamo", "Pregraph")
"""How operators of compiled code begin: its kernels are not recorded, so that their own time is computation."""

_HOOKS = ("FSDP::", "FullyShardedDataParallel._")
"""How annotations begin inside which a framework moves shards and computes nothing itself."""

_ON_THE_CALLERS_THREAD = ("gloo:send", "gloo:recv")
"""Their spans overlap what the thread that called them does meanwhile."""


@record
class CpuWork:
    """Class of every event (classify.Work), when any thread computes, and when the rank communicates. marked: from the
    first mark of the profiler to the end of the last; None without."""

    work: NDArray[np.int8]
    compute: Spans
    comm: Spans
    marked: tuple[int, int] | None


def cpu_work(events: Events) -> CpuWork:
    """Classify the work of a rank of the CPU. Communication: spans of gloo's threads, and the time in which the thread that
    calls collectives is blocked on one. Compute: operators that are neither calls nor inside gloo's spans nor inside the
    data loader on the same thread (collation and augmentation are data time), without the time that they are blocked.
    """
    names = np.zeros(len(events.names), dtype=np.int8)
    for code, name in enumerate(events.names):
        names[code] = 2 if name.startswith("gloo:") else 1 if name.startswith(COMM_LAUNCHES) else 0
    kind = names[events.name]
    work = np.zeros(len(events), dtype=np.int8)
    gloo = np.flatnonzero((kind == 2) & events.of(Category.USER_ANNOTATION, Category.CPU_OP))
    operators = np.flatnonzero((events.category == Category.CPU_OP) & (kind == 0))
    moved = gloo[~events.begins(_ON_THE_CALLERS_THREAD)[gloo]]
    elsewhere = np.concatenate([np.flatnonzero(loading_marks(events)), moved])
    operators = operators[~_begin_inside(events, operators, elsewhere)]
    work[operators] = Work.COMPUTE
    work[gloo] = Work.COMMUNICATION
    called = comm_calls(events)
    waits = _wait_spans(events, operators, called, gloo)
    comm = events.spans(gloo)
    marks = step_marks(events)
    return CpuWork(
        work=work,
        compute=spans.subtract(_in_operators(events, operators, called), waits),
        comm=spans.join(comm, waits),
        marked=(int(marks.starts[0]), int(marks.ends.max())) if len(marks) and marks.by == "profiler" else None,
    )


def _in_operators(events: Events, operators: Ints, calls: Ints) -> Spans:
    """Return when any CPU thread is in an operator and not, inside it, in a call of a collective or a wait for one."""
    parts = []
    for thread in distinct(events.thread[operators]).tolist():
        on_thread, calls_there = operators[events.thread[operators] == thread], calls[events.thread[calls] == thread]
        within = events.spans(on_thread)
        parts.append(spans.subtract(within, events.spans(calls_there)))
    return spans.join(*parts)


def _wait_spans(events: Events, operators: Ints, calls: Ints, gloo: Ints) -> Spans:
    """Return when the rank is blocked on a collective: no thread is in an operator that computes, in a call or loading data,
    and the next one of these begins after one of gloo's spans has ended; until the end of the last such span.

    Inside an operator that holds others, and inside a framework's hook, until that next one: little but waking up is done
    there. Operators that compute are never cut: what ends while they run was not waited for.
    """
    ends = np.sort(events.end_ns[gloo])
    holds = events.named(_only_holds)[operators]
    working = np.concatenate([operators[~holds], calls, np.flatnonzero(loading_marks(events))])
    hooks = (events.category == Category.USER_ANNOTATION) & events.begins(_HOOKS)
    around = np.concatenate([operators[holds], np.flatnonzero(hooks)])
    busy = events.spans(working)
    outer = events.spans(around)
    if not len(ends) or not len(calls) or not len(busy):
        return spans.EMPTY
    holes = spans.gaps(busy, low=int(busy.starts[0]), high=int(max(busy.ends[-1], ends[-1])))
    before = np.searchsorted(ends, holes.ends, side="right") - 1
    hit = (before >= 0) & (ends[np.maximum(before, 0)] > holes.starts)
    last, until = ends[before[hit]], ends[before[hit]].copy()
    if len(outer):
        at = spans.place(outer.starts, outer.ends, last)
        within = at >= 0
        until[within] = np.minimum(outer.ends[at], holes.ends[hit])[within]
    return spans.union(holes.starts[hit], until)


def _only_holds(name: str) -> bool:
    """Whether operators of this name compute nothing in their own time: nodes and functions of autograd, Python's
    dispatch. What has a namespace computes."""
    return name.startswith("autograd::engine") or ("::" not in name and not name.startswith(_COMPILED))


def _begin_inside(events: Events, operators: Ints, marks: Ints) -> NDArray[np.bool_]:
    """Return which of these operators begin inside one of the marks of their own thread."""
    inside = np.zeros(len(operators), dtype=bool)
    for thread in distinct(events.thread[marks]).tolist():
        on_thread = marks[events.thread[marks] == thread]
        marked = events.spans(on_thread)
        here = np.flatnonzero(events.thread[operators] == thread)
        inside[here] = spans.holds(marked, events.ts_ns[operators[here]])
    return inside
