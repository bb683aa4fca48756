"""Gaps that are no part of the usual step: a checkpoint, an evaluation, a stall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_budget import LongGap
from stepscope.traces.events import Category, Events
from stepscope.traces.host_marks import Marks
from stepscope.traces.idle import IdleGaps

Ints = NDArray[np.int64]

LEAST_SHARE = 0.1
"""Of the window; shorter gaps are worth no finding of their own."""

OUTSTANDING = 5
"""How many times as long as the longest ordinary gap."""

LEAST_NS = 100_000_000
"""No checkpoint and no evaluation is shorter."""

MOST_GAPS = 3

ALONE_NS = 1_000_000_000
"""From this length on a gap stands out of a trace without marked steps, of which nothing says how long a step is."""


def long_gaps(events: Events, gaps: IdleGaps, marks: Marks, *, rank: int) -> tuple[IdleGaps, tuple[LongGap, ...]]:
    """The gaps with the long ones under the cause ``long_gap``, and the long ones in order of time.

    Long are at most ``MOST_GAPS``, each ``LEAST_SHARE`` of the window, ``LEAST_NS`` and ``OUTSTANDING`` times the longest
    other gap, in at most half of the marked steps; with one marked step nothing tells what is usual.
    """
    holes = gaps.holes
    lengths = holes.ends - holes.starts
    if not len(lengths) or len(marks) == 1:
        return gaps, ()
    low, high = gaps.window
    order = np.argsort(-lengths, kind="stable")[: MOST_GAPS + 1]
    longest = np.append(lengths[order], 0)
    most = min(MOST_GAPS, len(marks) // 2 if len(marks) else MOST_GAPS)
    least = max(LEAST_SHARE * (high - low), LEAST_NS if len(marks) else ALONE_NS)
    count = next((k for k in range(1, most + 1) if longest[k - 1] >= OUTSTANDING * longest[k]), 0)
    if not count or longest[count - 1] < least:
        return gaps, ()
    chosen = np.sort(order[:count])
    found = tuple(_long_gap(events, gaps, marks, int(i), rank=rank) for i in chosen)
    by_cause = {cause: values.copy() for cause, values in gaps.by_cause.items()}
    for values in by_cause.values():
        values[chosen] = 0
    by_cause["long_gap"] = np.zeros(len(lengths), dtype=np.int64)
    by_cause["long_gap"][chosen] = lengths[chosen]
    return replace(gaps, by_cause=by_cause), found


def _long_gap(events: Events, gaps: IdleGaps, marks: Marks, place: int, *, rank: int) -> LongGap:
    start, end = int(gaps.holes.starts[place]), int(gaps.holes.ends[place])
    step = int(np.searchsorted(marks.starts, start, side="right")) - 1
    return LongGap(
        rank=rank,
        after_ns=start - gaps.window[0],
        gap_ns=end - start,
        cause=max(gaps.by_cause, key=lambda cause: gaps.by_cause[cause][place]),
        step=int(marks.numbers[step]) if step >= 0 else None,
        host_in=_host_in(events, start, end),
    )


def _host_in(events: Events, start: int, end: int) -> str | None:
    """The operator or annotation that fills most of [start, end); None where none fills half of it, or one that is much
    longer itself, which says nothing of the gap."""
    host = np.isin(events.category, (Category.CPU_OP, Category.USER_ANNOTATION))
    host &= ~events.named(lambda name: name.startswith("ProfilerStep"))
    during = (events.ts_ns < end) & (events.end_ns > start) & (events.dur_ns <= 1.5 * (end - start))
    near = np.flatnonzero(host & during)
    if not len(near):
        return None
    shared = np.minimum(events.end_ns[near], end) - np.maximum(events.ts_ns[near], start)
    best = int(np.argmax(shared))
    return events.name_of(int(near[best])) if 2 * shared[best] >= end - start else None
