"""Which host span lies inside which: parent, depth and self time of spans on many threads at once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.traces.events import NONE

Ints = NDArray[np.int64]
AnyInts = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Nest:
    """Spans by (thread, start, longest first), each inside its parent; what ``nest`` makes. All of shape (n,).

    index: what was given for each span (an event's index). ends: cut off at the parent's end where a span outlasts
    the span that it began in (times rounded to microseconds do so), so that the tree is exact; never before starts.
    parent: position in these arrays, NONE at the root. depth: 0 at the root.
    """

    index: Ints
    thread: Ints
    starts: Ints
    ends: Ints
    parent: Ints
    depth: Ints
    cut: int  # spans that outlasted their parent

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def self_ns(self) -> Ints:
        """Time of each span that no span inside it covers; sums to the time covered by all spans, per thread."""
        own = self.ends - self.starts
        inner = np.zeros(len(own), dtype=np.int64)
        nested = np.flatnonzero(self.parent != NONE)
        np.add.at(inner, self.parent[nested], own[nested])
        return own - inner

    @cached_property
    def _line(self) -> _Line:
        return _Line(self.thread, self.starts, self.ends)

    @cached_property
    def after(self) -> Ints:
        """Position after each span's last descendant: the subtree of span i is [i, after[i])."""
        places = np.searchsorted(self._line.starts, self._line.ends, side="left")
        # A span without length ends where spans after it may start.
        return np.asarray(np.maximum(places, np.arange(1, len(self) + 1)), dtype=np.int64)

    def subtree_sums(self, values: Ints) -> Ints:
        """Sum of ``values`` (shape (n,), by position) over each span and everything inside it."""
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
        return np.asarray(before[self.after] - before[:-1], dtype=np.int64)

    def innermost(self, threads: AnyInts, points: Ints) -> Ints:
        """Position of the innermost span open at each (thread, time), NONE where there is none.

        A span is open in [start, end); one without length never is. Shapes (m,) -> (m,).
        """
        if not len(self) or not len(points):
            return np.full(len(points), NONE, dtype=np.int64)
        return self._line.innermost(np.asarray(threads, dtype=np.int64), points)

    def outermost_of(self, labels: Ints) -> NDArray[np.bool_]:
        """Whether no span around a span bears the same label (shape (n,)): what a total may count once."""
        order = np.lexsort((np.arange(len(self)), labels))
        label, line = labels[order], self._line
        starts, ends = line.starts[order], line.ends[order]
        reach = _running_max(_dense(label), ends)
        outer = np.ones(len(self), dtype=bool)
        same = label[1:] == label[:-1]
        outer[order[1:]] = ~(same & (starts[1:] < reach[:-1]))
        return outer


class _Line:
    """The spans of all threads one after the other on one time line, so that one search serves them all."""

    def __init__(self, thread: Ints, starts: Ints, ends: Ints) -> None:
        self._low = int(starts.min()) if len(starts) else 0
        high = int(ends.max()) if len(ends) else 0
        self._width = high - self._low + 2
        self.starts = self.at(thread, starts)
        self.ends = self.at(thread, ends)
        self._long = np.flatnonzero(ends > starts)
        self._long_starts = self.starts[self._long]
        self._long_ends = np.sort(self.ends[self._long])
        count = len(self._long)
        opened = np.arange(count, dtype=np.int64)
        self.depth = opened - np.searchsorted(self._long_ends, self._long_starts, side="right")
        self._by_depth = np.sort(self.depth * (count + 1) + opened)
        self._count = count

    def at(self, thread: Ints, times: Ints) -> Ints:
        """Times beyond the spans of a thread stay between it and the next."""
        within = np.clip(times - self._low, -1, self._width - 2) + 1
        return np.asarray(thread * (self._width + 1) + within, dtype=np.int64)

    def innermost(self, thread: Ints, points: Ints) -> Ints:
        where = self.at(thread, points)
        begun = np.searchsorted(self._long_starts, where, side="right")
        ended = np.searchsorted(self._long_ends, where, side="right")
        return self._last(begun, begun - ended - 1)

    def parents(self) -> Ints:
        """Parent of each span with length by its place among them, NONE at the root; places into all spans."""
        return self._last(np.arange(self._count), self.depth - 1)

    @property
    def with_length(self) -> Ints:
        return self._long

    def _last(self, before: Ints, depth: Ints) -> Ints:
        """The last span of this depth among the first ``before``."""
        found = np.full(len(before), NONE, dtype=np.int64)
        inside = np.flatnonzero(depth >= 0)
        key = depth[inside] * (self._count + 1) + before[inside]
        place = self._by_depth[np.searchsorted(self._by_depth, key, side="left") - 1]
        found[inside] = self._long[place % (self._count + 1)]
        return found


def nest(index: AnyInts, thread: AnyInts, starts: Ints, ends: Ints) -> Nest:
    """The tree of the spans [starts[i], ends[i]) of each thread; all inputs of shape (n,), ``index`` names them.

    The parent is the latest started span that is open at the start. Spans of equal start: the longer one is outside,
    of equal ones the first given. O(n log n) in numpy; only threads on which a span outlasts its parent take a pass
    span by span.
    """
    order = np.lexsort((-ends, starts, thread))
    names: Ints = index[order].astype(np.int64)
    line_of: Ints = thread[order].astype(np.int64)
    starts, ends = starts[order].astype(np.int64), ends[order].astype(np.int64)
    parent, cut = np.full(len(starts), NONE, dtype=np.int64), 0
    if len(starts):
        line = _Line(line_of, starts, ends)
        parent[line.with_length] = line.parents()
        known = np.flatnonzero(parent != NONE)
        outlasting = known[ends[known] > ends[parent[known]]]
        if len(outlasting):
            ends = ends.copy()
            for t in np.unique(line_of[outlasting]).tolist():
                low, high = np.searchsorted(line_of, [t, t + 1])
                cut += _cut_off(starts[low:high], ends[low:high])
            line = _Line(line_of, starts, ends)
            parent[:] = NONE
            parent[line.with_length] = line.parents()
        short = np.flatnonzero(ends == starts)
        parent[short] = line.innermost(line_of[short], starts[short])
    return Nest(index=names, thread=line_of, starts=starts, ends=ends, parent=parent, depth=_depths(parent), cut=cut)


def _cut_off(starts: Ints, ends: Ints) -> int:
    """Shorten, in place, every span of one thread that outlasts the span it began in; how many there were."""
    stack: list[int] = []
    new, cut = ends.tolist(), 0
    for i, (start, end) in enumerate(zip(starts.tolist(), new, strict=True)):
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            new[i] = end = stack[-1]
            cut += 1
        if end > start:
            stack.append(end)
    ends[:] = new
    return cut


def _depths(parent: Ints) -> Ints:
    depth = np.zeros(len(parent), dtype=np.int64)
    level = np.flatnonzero(parent != NONE)
    above = parent[level]
    while len(level):
        depth[level] += 1
        above = parent[above]
        stay = above != NONE
        level, above = level[stay], above[stay]
    return depth


def _dense(labels: Ints) -> Ints:
    """0, 1, 2, ... for the runs of equal labels."""
    if not len(labels):
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(labels[1:] != labels[:-1])])


def _running_max(groups: Ints, values: Ints) -> Ints:
    """Running maximum of ``values`` that starts anew in each group; groups ascend."""
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(len(values), dtype=np.int64)
    rank[by_value] = np.arange(len(values))
    highest = np.maximum.accumulate(groups * len(values) + rank) - groups * len(values)
    return np.asarray(values[by_value[highest]])


def union_by_group(groups: Ints, starts: Ints, ends: Ints, *, count: int) -> Ints:
    """Time covered by the spans of each group, overlaps once; groups are 0 .. count - 1. Shape (count,)."""
    totals = np.zeros(count, dtype=np.int64)
    if not len(starts):
        return totals
    order = np.lexsort((starts, groups))
    group, begin, end = groups[order].astype(np.int64), starts[order], ends[order]
    reach = _running_max(_dense(group), end)
    before = begin.copy()
    same = group[1:] == group[:-1]
    before[1:] = np.where(same, np.maximum(begin[1:], reach[:-1]), begin[1:])
    np.add.at(totals, group, np.maximum(end - before, 0))
    return totals
