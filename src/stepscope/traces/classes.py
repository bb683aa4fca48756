"""What each device event of a rank is: computation, communication or copying.

What the user states counts first, then the library that its name proves, then the operator that launched it, then words of
its name. What none of them tells is unknown: sums count it as computation, which hides communication, so exposed
communication is the least that it can be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.words import url_of
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, once
from stepscope.traces.kernel_names import Work, names_collective, names_computation, work_named

if TYPE_CHECKING:
    from stepscope.records.trace_quality import QualityFact
    from stepscope.traces.sections import StatedClass

STATED = {"computation": Work.COMPUTE, "communication": Work.COMMUNICATION, "copies": Work.MEMORY}
"""What a user may state of a kernel, and what that is here."""

MOST_UNKNOWN = 0.05
"""Of the kernels' time: from more on what computes and what communicates is not told apart, and is not judged."""

SCANNED_UNKNOWN = 0.01
"""Of the kernels' time: where names leave more open, the operators are read, too."""

NAMED = 8
"""Names of unknown kernels that are kept."""

BESIDE = "kernel-classes.txt"
"""Name of the file that states classes of the traces below its folder."""

_UP_TO_THE_RUN = 4
"""RUN/cells/ID/trace/FILE."""


@record
class Classes:
    """work: class of every event, shape (len(events),). unknown: indices of the kernels that nothing classifies, of which
    the class is COMPUTE."""

    work: NDArray[np.int8]
    unknown: Ints


def work_of(view: RankView) -> NDArray[np.int8]:
    """Work class of every event: by ``cat`` first, kernels then as ``classes_of`` says."""
    return classes_of(view).work


@once
def classes_of(view: RankView) -> Classes:
    """Classify every event of a rank. The only rank of a job does not communicate: nothing is unknown there."""
    events = view.events
    work, open_ = _class_by_name(events, view.wanted.classes)
    unknown = np.flatnonzero(open_ & (work == Work.NOT_DEVICE) & (events.category == Category.KERNEL))
    if open_.any() and not view.trace.partial:
        chosen = np.flatnonzero(open_)
        by_operator = _by_operator(events, chosen)
        # A name that speaks of computation gives way to an operator that is a collective, and to no other.
        named = work[chosen] == Work.COMPUTE
        work[chosen[by_operator == Work.COMMUNICATION]] = Work.COMMUNICATION
        work[chosen[(by_operator == _WITHIN_RANGE) & ~named]] = Work.COMMUNICATION
        unknown = chosen[(by_operator == Work.NOT_DEVICE) & ~named]
    if view.meta.world_size == 1:
        unknown = unknown[:0]
    work[open_ & (work == Work.NOT_DEVICE)] = Work.COMPUTE
    return Classes(work=work, unknown=unknown)


def undecided_share(events: Events, stated: Sequence[StatedClass]) -> float:
    """Return the share of the kernels' time whose names decide nothing."""
    work, open_ = _class_by_name(events, stated)
    kernels = events.category == Category.KERNEL
    spent = int(events.dur_ns[kernels].sum())
    return int(events.dur_ns[open_ & (work == Work.NOT_DEVICE)].sum()) / spent if spent else 0.0


def unknown_fact(view: RankView) -> QualityFact | None:
    """Return how much of the kernels' time is of unknown class, how long only such kernels run, and their names; None where
    all are known."""
    from stepscope.records.trace_quality import QualityFact  # not needed for the budget

    events, classes = view.events, classes_of(view)
    unknown = classes.unknown
    spent = int(events.dur_ns[events.category == Category.KERNEL].sum())
    if not len(unknown) or not spent:
        return None
    by_name = np.bincount(events.name[unknown], weights=events.dur_ns[unknown])
    ordered = [code for code in np.argsort(-by_name, kind="stable").tolist() if by_name[code]]
    share = int(events.dur_ns[unknown].sum()) / spent
    computes = classes.work == Work.COMPUTE
    every = events.spans(np.flatnonzero(computes)).measure
    computes[unknown] = False
    return QualityFact(
        kind="unknown-kernels",
        rank=view.rank,
        count=len(unknown),
        of=int((events.category == Category.KERNEL).sum()),
        time_ns=every - events.spans(np.flatnonzero(computes)).measure,
        share=share,
        names=tuple(events.names[code] for code in ordered[:NAMED]),
        matters=share > MOST_UNKNOWN and _of_several(view),
    )


def _of_several(view: RankView) -> bool:
    """Whether anything shows that the rank is one of several: torch records the size of a job only where it has one."""
    events, trace = view.events, view.trace
    if (view.meta.world_size or 0) > 1 or not trace.alone or trace.rank > 0:
        return True
    called = events.named(_COLLECTIVES.match, events.category == Category.CPU_OP)
    return bool((called | (classes_of(view).work == Work.COMMUNICATION)).any())


def stated_beside(path: Path) -> tuple[StatedClass, ...]:
    """Return the classes in the file of that name in the trace's folder or one above it, up to that of a run."""
    if url_of(path) is not None:
        return ()
    folders = path.absolute().parents[:_UP_TO_THE_RUN]
    file = next((folder / BESIDE for folder in folders if (folder / BESIDE).is_file()), None)
    if file is None:
        return ()
    from stepscope.traces.stated_classes import read_classes

    return read_classes(file)


def unused_classes(view: RankView) -> tuple[str, ...]:
    """Return the patterns of stated classes that fit no kernel of the rank."""
    events, stated = view.events, view.wanted.classes
    names = [events.names[code] for code in events.codes(events.category == Category.KERNEL)]
    patterns = zip(stated, _stated_matchers(stated), strict=True)
    return tuple(pattern for (_, pattern), (fits, _) in patterns if not any(map(fits, names)))


def _stated_matchers(stated: Sequence[StatedClass]) -> list[tuple[Callable[[str], bool], Work]]:
    if not stated:
        return []
    from stepscope.traces.stated_classes import matcher

    return [(matcher(pattern), STATED[kind]) for kind, pattern in stated]


def _class_by_name(events: Events, stated: Sequence[StatedClass]) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return the class of every event as category, user and name tell it, and the kernels that an operator may decide:
    NOT_DEVICE where the name says nothing."""
    work = np.zeros(len(events), dtype=np.int8)
    category = events.category
    work[(category == Category.MEMCPY) | (category == Category.MEMSET)] = Work.MEMORY
    kernels = category == Category.KERNEL
    by_name = np.zeros(len(events.names), dtype=np.int8)
    sure = np.zeros(len(events.names), dtype=bool)
    patterns = _stated_matchers(stated)
    for code in events.codes(kernels):
        name = events.names[code]
        stated_kind = next((kind for fits, kind in patterns if fits(name)), None)
        by_name[code], sure[code] = work_named(name) if stated_kind is None else (stated_kind, True)
    work[kernels] = by_name[events.name[kernels]]
    return work, kernels & ~sure[events.name]


_WITHIN_RANGE = 4
"""Beside the values of Work: in a range of the user's that is called like a collective, which proves less."""

_COLLECTIVES = re.compile(
    r"(c10d|_?c10d_functional(_autograd)?|symm_mem|torchcomms?|deep_ep|mori|nvshmem|uccl|pplx\w*)::|record_param_comms"
    r"|(nccl|rccl|xccl|hccl|gloo|ucc|mpi|mccl|oneccl|ccl|eccl|cncl|torchcomm\w*):(?!:)|\w*(?<![a-z])ep::(dispatch|combine)",
    re.IGNORECASE,
)
"""How the names of operators and ranges begin that launch a collective."""

_COMPUTING = re.compile(
    r"aten::|torch::autograd::|\w+Backward\d+$|triton_|Torch-Compiled|CompiledFunction|## Call CompiledFxGraph"
)
_SHARDING = ("FSDP::", "FullyShardedDataParallel.")
"""Ranges around a collective and the copies beside it."""
_NODE = "autograd::engine::evaluate_function: "
_GRAPH = re.compile(r"Graph(Exec)?Launch|RIExecute|CommandBuffer")


@lru_cache(maxsize=1 << 14)
def _of_operator(operator: str) -> Work:
    """What an operator's own kernels are, as its name tells; NOT_DEVICE: it does not. One of torch's own or of any namespace
    computes unless its name is a collective's; an autograd.Function of a user's may do what its name leaves open."""
    name = operator.removeprefix(_NODE)
    if _COLLECTIVES.match(name):
        return Work.COMMUNICATION
    if _COMPUTING.match(name) and not (name.startswith("torch::") and names_collective(name.partition("<")[2])):
        return Work.COMPUTE
    if names_collective(name):
        return Work.COMMUNICATION
    return Work.COMPUTE if "::" in name or names_computation(name) else Work.NOT_DEVICE


def _by_operator(events: Events, chosen: Ints) -> NDArray[np.int8]:
    """Return what the innermost operator around the launch of each of these kernels says: a value of Work, or _WITHIN_RANGE.

    What a graph launches says nothing: the operator around the launch replays all of it.
    """
    from stepscope.traces.nesting import launch_of, nest_events  # a budget whose names tell all does without

    launch = launch_of(events, chosen)
    graph = events.named(_GRAPH.search, launch[launch != NONE])
    host = events.of(Category.CPU_OP, Category.USER_ANNOTATION)
    says = np.zeros(len(events.names), dtype=np.int8)
    for code in events.codes(host):
        says[code] = _of_operator(events.names[code])
    ranges = events.category == Category.USER_ANNOTATION
    # Other ranges of the user's say nothing; what is inside or around them does.
    spoken = host & (~ranges | (says[events.name] == Work.COMMUNICATION)) & ~events.begins(_SHARDING)
    linked = np.flatnonzero((launch != NONE) & ~graph[np.maximum(launch, 0)])
    by_operator = np.zeros(len(chosen), dtype=np.int8)
    if not len(linked):
        return by_operator
    points = events.ts_ns[launch[linked]]
    thread = events.thread[launch[linked]].astype(np.int64)
    around = np.flatnonzero(spoken)
    around = around[_contains_mask(events, around, thread, points)]
    tree = nest_events(events, around)
    place = tree.innermost(thread, points)
    inside = np.flatnonzero(place != NONE)
    operator = tree.index[place[inside]].astype(np.int64)
    answer = says[events.name[operator]]
    own = ranges[operator] & ~events.named(_COLLECTIVES.match, operator)[operator]
    by_operator[linked[inside]] = np.where(own & (answer == Work.COMMUNICATION), _WITHIN_RANGE, answer)
    return by_operator


def _contains_mask(events: Events, spans: Ints, thread: Ints, points: Ints) -> NDArray[np.bool_]:
    """Whether any of the points (thread, time) lies within each of these events: few do, and only those are nested."""
    inside = np.zeros(len(spans), dtype=bool)
    of = events.thread[spans]
    for number in sorted(set(thread.tolist())):
        times = np.sort(points[thread == number])
        on = np.flatnonzero(of == number)
        first = np.searchsorted(times, events.ts_ns[spans[on]], side="left")
        inside[on] = first < np.searchsorted(times, events.end_ns[spans[on]], side="left")
    return inside
