"""Which host span lies inside which: parent, depth and self time of spans on many threads at once.

From device work to the host call that launched it, through the correlation id.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints

AnyInts = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Nest:
    """Spans by (thread, start, longest first), each inside its parent; what ``nest`` makes. All of shape (n,).

    index: what was given for each span (an event's index). ends: cut off at the parent's end where a span outlasts
    the span that it began in (times rounded to microseconds do so), so that the tree is exact; never before starts.
    parent: position in these arrays, NONE at the root.
    """

    index: AnyInts
    thread: AnyInts
    starts: Ints
    ends: Ints
    parent: AnyInts

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def self_ns(self) -> Ints:
        """Time of each span that no span inside it covers; sums to the time covered by all spans, per thread."""
        own = self.ends - self.starts
        nested = np.flatnonzero(self.parent != NONE)
        return own - sums(self.parent[nested], own[nested], len(own))

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
        before = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=before[1:])
        total: Ints = before[self.after]
        total -= before[:-1]
        return total

    def innermost(self, threads: AnyInts, points: Ints) -> Ints:
        """Position of the innermost span open at each (thread, time), NONE where there is none.

        A span is open in [start, end); one without length never is. Shapes (m,) -> (m,).
        """
        if not len(self) or not len(points):
            return np.full(len(points), NONE, dtype=np.int64)
        positions = np.empty(len(points), dtype=np.int64)
        for part in _count_slices(len(points)):
            positions[part] = self._line.innermost(threads[part], points[part])
        return positions

    def outermost_of(self, labels: Ints) -> NDArray[np.bool_]:
        """Whether no span around a span bears the same label (shape (n,)): what a total may count once."""
        order = np.argsort(labels, kind="stable")
        label = labels[order]
        same = label[1:] == label[:-1]
        groups = _dense_numbers(label)
        del label
        reach = _running_max(groups, self._line.ends[order])
        del groups
        outer = np.ones(len(self), dtype=bool)
        outer[order[1:]] = ~(same & (self._line.starts[order][1:] < reach[:-1]))
        return outer


class _Line:
    """The spans of all threads one after the other on one time line, so that one search serves them all."""

    def __init__(self, thread: AnyInts, starts: Ints, ends: Ints) -> None:
        self._low = int(starts.min()) if len(starts) else 0
        high = int(ends.max()) if len(ends) else 0
        self._width = high - self._low + 2
        self.starts = self.at(thread, starts)
        self._thread, self._ends = thread, ends
        # Spans with length; mostly all of them, and then not kept twice.
        long = np.flatnonzero(ends > starts)
        self._long = None if len(long) == len(starts) else long
        self._long_starts = self.starts if self._long is None else self.starts[long]
        self._long_ends = self.ends if self._long is None else self.ends[long]
        self._long_ends.sort()
        self._count = len(long)
        del long
        by_depth = self._depths()
        by_depth *= self._count + 1
        by_depth += np.arange(self._count, dtype=np.int64)
        by_depth.sort()
        self._by_depth = by_depth

    @property
    def ends(self) -> Ints:
        """Ends of all spans; they are not kept, as few callers ask."""
        return self.at(self._thread, self._ends)

    def _depths(self) -> Ints:
        """Count for each span with length how many are open where it begins."""
        depths = np.arange(self._count, dtype=np.int64)
        depths -= np.searchsorted(self._long_ends, self._long_starts, side="right")
        return depths

    def at(self, thread: AnyInts, times: Ints) -> Ints:
        """Put times on the one time line. Times beyond the spans of a thread stay between it and the next."""
        place: Ints = times - self._low
        np.clip(place, -1, self._width - 2, out=place)
        place += 1
        for number in distinct(thread).tolist():
            place[thread == number] += number * (self._width + 1)
        return place

    def innermost(self, thread: AnyInts, points: Ints) -> Ints:
        where = self.at(thread, points)
        begun = np.searchsorted(self._long_starts, where, side="right")
        ended = np.searchsorted(self._long_ends, where, side="right")
        return self._last(begun, begun - ended - 1)

    def parents(self) -> Ints:
        """Parent of each span with length by its place among them, NONE at the root; places into all spans."""
        depth = self._depths()
        for part in _count_slices(self._count):
            depth[part] = self._last(np.arange(part.start, part.stop), depth[part] - 1)
        return depth

    @property
    def with_length(self) -> Ints | slice:
        return slice(None) if self._long is None else self._long

    def _last(self, before: Ints, depth: Ints) -> Ints:
        """The last span of this depth among the first ``before``."""
        positions = np.full(len(before), NONE, dtype=np.int64)
        inside = np.flatnonzero(depth >= 0)
        key = depth[inside]
        key *= self._count + 1
        key += before[inside]
        place = np.searchsorted(self._by_depth, key, side="left")
        del key
        place -= 1
        place = self._by_depth[place]
        place %= self._count + 1
        positions[inside] = place if self._long is None else self._long[place]
        return positions


_AT_A_TIME = 1 << 18


def _count_slices(count: int) -> Iterator[slice]:
    """Yield 0 .. count in pieces whose intermediate results need little memory."""
    return (slice(low, min(low + _AT_A_TIME, count)) for low in range(0, count, _AT_A_TIME))


def nest(index: AnyInts, thread: AnyInts, starts: Ints, ends: Ints) -> Nest:
    """The tree of the spans [starts[i], ends[i]) of each thread; all inputs of shape (n,), ``index`` names them.

    The parent is the latest started span that is open at the start. Spans of equal start: the longer one is outside,
    of equal ones the first given. O(n log n) in numpy; only threads on which a span outlasts its parent take a pass
    span by span.
    """
    order = np.lexsort((-ends, starts, thread))
    names: AnyInts = index[order]
    line_of: AnyInts = thread[order]
    starts, ends = starts[order].astype(np.int64, copy=False), ends[order].astype(np.int64, copy=False)
    del order, index, thread
    parent = np.full(len(starts), NONE, dtype=np.int32)
    if len(starts):
        line = _Line(line_of, starts, ends)
        parent[line.with_length] = line.parents()
        nested = np.flatnonzero(parent != NONE)
        outlasting = nested[ends[nested] > ends[parent[nested]]]
        if len(outlasting):
            ends = ends.copy()
            for t in distinct(line_of[outlasting]).tolist():
                low, high = np.searchsorted(line_of, [t, t + 1])
                _cut_off(starts[low:high], ends[low:high])
            line = _Line(line_of, starts, ends)
            parent[:] = NONE
            parent[line.with_length] = line.parents()
        short = np.flatnonzero(ends == starts)
        parent[short] = line.innermost(line_of[short], starts[short])
    return Nest(index=names, thread=line_of, starts=starts, ends=ends, parent=parent)


def nest_events(events: Events, chosen: Ints) -> Nest:
    """The tree of these events, each on its thread."""
    return nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])


def _cut_off(starts: Ints, ends: Ints) -> None:
    """Shorten, in place, every span of one thread that outlasts the span it began in."""
    stack: list[int] = []
    new = ends.tolist()
    for i, (start, end) in enumerate(zip(starts.tolist(), new, strict=True)):
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            new[i] = end = stack[-1]
        if end > start:
            stack.append(end)
    ends[:] = new


def _dense_numbers(labels: Ints) -> Ints:
    """Number the runs of equal labels 0, 1, 2, ..."""
    if not len(labels):
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(labels[1:] != labels[:-1])])


def _running_max(groups: Ints, values: Ints) -> Ints:
    """Running maximum of ``values`` that starts anew in each group; groups ascend."""
    by_value = np.argsort(values, kind="stable")
    highest = np.empty(len(values), dtype=np.int64)
    highest[by_value] = np.arange(len(values))
    highest += groups * len(values)
    np.maximum.accumulate(highest, out=highest)
    highest -= groups * len(values)
    return np.asarray(values[by_value[highest]])


def sums(groups: AnyInts, values: Ints, count: int) -> Ints:
    """Sum of the values of each group; groups are 0 .. count - 1. Exact, as np.bincount's weights are not."""
    totals = np.zeros(count, dtype=np.int64)
    np.add.at(totals, groups, values)
    return totals


def union_by_group(groups: Ints, starts: Ints, ends: Ints, *, count: int) -> Ints:
    """Time covered by the spans of each group, overlaps once; groups are 0 .. count - 1. Shape (count,)."""
    if not len(starts):
        return np.zeros(count, dtype=np.int64)
    order = np.lexsort((starts, groups))
    group, begin, end = groups[order].astype(np.int64), starts[order], ends[order]
    reach = _running_max(_dense_numbers(group), end)
    before = begin.copy()
    same = group[1:] == group[:-1]
    before[1:] = np.where(same, np.maximum(begin[1:], reach[:-1]), begin[1:])
    return sums(group, np.maximum(end - before, 0), count)


def find(keys: AnyInts, wanted: AnyInts) -> Ints:
    """Find the first place in ``keys`` of each of ``wanted``, NONE where none does. Shapes (n,), (m,) -> (m,)."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, wanted), len(keys) - 1)
    return np.where(ordered[at] == wanted, order[at], NONE)


def launch_of(events: Events, device: Ints) -> Ints:
    """Return the runtime or driver call that launched each of these events, by correlation id; NONE where none is recorded.

    A driver call inside a runtime call gives way.
    """
    calls = events.where(Category.RUNTIME, Category.DRIVER)
    calls = calls[events.correlation[calls] != NONE]
    # Runtime calls first: of those with one id the first counts.
    calls = calls[np.argsort(events.category[calls], kind="stable")]
    at = find(events.correlation[calls], events.correlation[device])
    launch = np.full(len(device), NONE, dtype=np.int64)
    launch[at != NONE] = calls[at[at != NONE]]
    return launch
