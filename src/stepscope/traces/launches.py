"""How the host kept the device supplied: delays, short work, late launches, and the queue between the two.

Time inside a CPU rank's operators that is their calling: operators as short as their call, and Python's own dispatch.
"""

from __future__ import annotations

import numpy as np

from stepscope.records.trace_work import DelaySummary, LaunchStatistics, QueueLength
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints, RankTrace
from stepscope.traces.nesting import Launches, nest
from stepscope.traces.passes import COMM_LAUNCHES, step_marks

SLICES = 200
"""Slices of the queue's time line."""


def launch_statistics(trace: RankTrace, launches: Launches) -> LaunchStatistics | None:
    """Statistics of every device event that has its launch in the file; None when there is no device event.

    A launch that made several events (a CUDA graph) counts once per event.
    """
    events = trace.events
    device = events.is_device[launches.of]
    total = int(device.sum())
    if not total:
        return None
    linked = device & launches.known
    work, call = launches.of[linked], launches.launch[linked]
    starts, ends = events.ts_ns[work], events.end_ns[work]
    called, call_ns = events.ts_ns[call], events.dur_ns[call]
    if not len(work):
        why = "no device event's launch is in the file (no runtime events, or all were launched before the capture)"
        return LaunchStatistics(
            rank=trace.rank, launched=0, unlinked=total, early=0, delay=None, call=None,
            short_count=0, short_ns=0, short_call_ns=0, late_count=0, late_share=None,
            launches_per_s=None, queue=None, unavailable=why,
        )  # fmt: skip
    short = ends - starts < call_ns
    late, follows = _late(trace, launches.of[device], launches.launch[device])
    one_each = distinct(call)
    host_ns = int((events.end_ns[one_each]).max() - events.ts_ns[one_each].min())
    return LaunchStatistics(
        rank=trace.rank,
        launched=len(work),
        unlinked=total - len(work),
        early=int((starts < called).sum()),
        delay=_summary(starts - called),
        call=_summary(events.dur_ns[one_each]),
        short_count=int(short.sum()),
        short_ns=int((ends - starts)[short].sum()),
        short_call_ns=int(call_ns[short].sum()),
        late_count=late,
        late_share=late / follows if follows else None,
        launches_per_s=len(one_each) / (host_ns / 1e9) if host_ns else None,
        queue=queue_length(called, starts),
        unavailable=None,
    )


def _late(trace: RankTrace, work: Ints, launch: Ints) -> tuple[int, int]:
    """Of the linked events with a predecessor on their stream: launched after it had ended; and how many."""
    events = trace.events
    place = events.device[work].astype(np.int64) * (2**31) + events.stream[work]
    order = np.lexsort((events.ts_ns[work], place))
    work, launch, place = work[order], launch[order], place[order]
    follows = (place[1:] == place[:-1]) & (launch[1:] >= 0)
    # On one stream work does not overlap, so the event before is the last to end.
    late = follows & (events.ts_ns[np.maximum(launch[1:], 0)] >= events.end_ns[work[:-1]])
    return int(late.sum()), int(follows.sum())


def queue_length(launched: Ints, started: Ints, *, slices: int = SLICES) -> QueueLength | None:
    """Launched and not yet started, over time; each entry of the inputs, shape (n,), is one piece of work.

    None without work, or when all of it was launched at one moment and started at once.
    """
    waits = started > launched
    joins, leaves = launched[waits], started[waits]
    if not len(launched):
        return None
    low, high = int(launched.min()), int(max(started.max(), launched.max()))
    if high == low:
        return None
    times = np.concatenate([joins, leaves])
    change = np.concatenate([np.ones(len(joins), dtype=np.int64), np.full(len(leaves), -1, dtype=np.int64)])
    # Of one moment, work starts before more is launched: the length never counts both.
    order = np.lexsort((change, times))
    times, length = times[order], np.cumsum(change[order])
    edges = np.concatenate([[low], times, [high]])
    level = np.concatenate([[0], length])
    lasting = np.diff(edges)
    width = max(1, -(-(high - low) // slices))
    begins = np.arange(low, high, width)
    longest = _longest_by_slice(begins, edges[:-1], level, lasting)
    return QueueLength(
        mean=float((level * lasting).sum() / (high - low)),
        longest=int(level[lasting > 0].max()),
        empty_share=float(lasting[level == 0].sum() / (high - low)),
        times_ns=tuple(begins.tolist()),
        longest_by_slice=tuple(longest.tolist()),
    )


def _longest_by_slice(begins: Ints, edges: Ints, level: Ints, lasting: Ints) -> Ints:
    real = lasting > 0
    edges, level = edges[real], level[real]
    at_start = level[np.maximum(np.searchsorted(edges, begins, side="right") - 1, 0)]
    longest = at_start.copy()
    np.maximum.at(longest, np.searchsorted(begins, edges, side="right") - 1, level)
    return longest


def _summary(values: Ints) -> DelaySummary:
    p90, p99 = np.quantile(values, [0.9, 0.99])
    return DelaySummary(
        count=len(values),
        min_ns=int(values.min()),
        median_ns=float(np.median(values)),
        mean_ns=float(values.mean()),
        p90_ns=float(p90),
        p99_ns=float(p99),
        max_ns=int(values.max()),
    )


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
