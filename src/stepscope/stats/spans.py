"""Span algebra: sets of half-open integer intervals [start, end) as pairs of sorted, disjoint numpy arrays. Distinct values
and the median of plain arrays.

``np.unique`` and ``np.median`` ask whether their array is masked, and import numpy.ma for it: 15 ms of every process that
reads a trace.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.core.dataclass import dataclass

Ints = NDArray[np.int64]

_EMPTY = np.empty(0, dtype=np.int64)
WINDOWS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint, sorted, non-empty intervals; touching ones are merged. Made by ``union`` only.

    ``starts`` and ``ends`` have the same length; ends[i] < starts[i + 1].
    """

    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def measure(self) -> int:
        """Total length of the set, in the unit of its ends."""
        return int((self.ends - self.starts).sum())


EMPTY = Spans(_EMPTY, _EMPTY)


def union(starts: Ints, ends: Ints) -> Spans:
    """The set covered by the intervals [starts[i], ends[i]), in any order; empty ones cover nothing.

    O(n log n). Raises ValueError when an interval ends before it starts.
    """
    if len(starts) == 0:
        return EMPTY
    if np.any(ends < starts):
        raise ValueError("an interval ends before it starts")
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
        if len(starts) == 0:
            return EMPTY
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts = starts[order]  # one after the other: the peak of a large trace's memory is here
        reach = ends[order]
        del order, ends
        np.maximum.accumulate(reach, out=reach)
    else:
        reach = np.maximum.accumulate(ends)
    opens = np.empty(len(starts), dtype=bool)
    opens[0] = True
    np.greater(starts[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return Spans(starts[first], reach[last])


def join(*sets: Spans) -> Spans:
    """Return what lies in at least one of the sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def intersect(a: Spans, b: Spans) -> Spans:
    """Return what lies in both sets."""
    if not len(a) or not len(b):
        return EMPTY
    # Every interval of the result starts where one of the two starts while the other is open.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    left, right = pairs(first, last)
    return Spans(np.maximum(a.starts[left], b.starts[right]), np.minimum(a.ends[left], b.ends[right]))


def pairs(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return every i beside each of the numbers from first[i] up to last[i], which is none of them."""
    counts = np.maximum(last - first, 0)
    left = np.repeat(np.arange(len(first)), counts)
    return left, np.arange(len(left)) + np.repeat(first - np.cumsum(counts) + counts, counts)


def subtract(a: Spans, b: Spans) -> Spans:
    """Return what lies in ``a`` and not in ``b``."""
    if not len(a) or not len(b):
        return a
    return intersect(a, gaps(b, low=int(min(a.starts[0], b.starts[0])), high=int(max(a.ends[-1], b.ends[-1]))))


def gaps(a: Spans, *, low: int, high: int) -> Spans:
    """Return what lies in [low, high) and not in ``a``."""
    starts = np.concatenate([np.array([low], dtype=np.int64), a.ends])
    ends = np.concatenate([a.starts, np.array([high], dtype=np.int64)])
    starts, ends = np.clip(starts, low, high), np.clip(ends, low, high)
    keep = ends > starts
    return Spans(starts[keep], ends[keep])


def clip(a: Spans, *, low: int, high: int) -> Spans:
    """The part of the set inside [low, high). O(log n) and what lies inside: steps are cut out of whole traces."""
    inside = slice(np.searchsorted(a.ends, low, side="right"), np.searchsorted(a.starts, high, side="left"))
    starts, ends = np.maximum(a.starts[inside], low), np.minimum(a.ends[inside], high)
    keep = ends > starts
    return Spans(starts[keep], ends[keep])


def covered_before(a: Spans, points: Ints) -> Ints:
    """How much of the set lies before each point: measure(a and (-inf, point)), shape of ``points``.

    Differences of it give the measure inside many windows at once, O(log n) each.
    """
    if not len(a):
        return np.zeros(len(points), dtype=np.int64)
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(a.ends - a.starts)])
    index = np.searchsorted(a.starts, points, side="right")
    before = total[index]
    beyond = np.maximum(a.ends[np.maximum(index - 1, 0)] - points, 0)
    return before - np.where(index > 0, beyond, 0)


def measure_within(a: Spans, starts: Ints, ends: Ints) -> Ints:
    """How much of the set lies in each window [starts[i], ends[i])."""
    inside = np.empty(len(starts), dtype=np.int64)
    for low in range(0, len(starts), WINDOWS_AT_ONCE):  # each needs six arrays in between
        block = slice(low, low + WINDOWS_AT_ONCE)
        inside[block] = covered_before(a, ends[block]) - covered_before(a, starts[block])
    return inside


def place(starts: Ints, ends: Ints, points: Ints) -> Ints:
    """Return which of the spans [starts[i], ends[i]), starts ascending, holds each point: the last that began by then, or
    -1."""
    if not len(starts):
        return np.full(len(points), -1, dtype=np.int64)
    at = np.searchsorted(starts, points, side="right") - 1
    return np.where(points < ends[np.maximum(at, 0)], at, -1)


def last_end(starts: Ints, ends: Ints, points: Ints) -> Ints:
    """The last end of those intervals, given in any order, that began before each point; -1 where none did."""
    if not len(starts):
        return np.full(len(points), -1, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    at = np.searchsorted(starts[order], points, side="left") - 1
    return np.where(at >= 0, np.maximum.accumulate(ends[order])[np.maximum(at, 0)], -1)


def holds(a: Spans, points: Ints) -> NDArray[np.bool_]:
    """Whether each point lies in the set."""
    return np.asarray(place(a.starts, a.ends, points) >= 0)


T = TypeVar("T", bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Each value once, ascending, shape (count,): ``np.unique`` of anything without NaN."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def median(values: ArrayLike) -> float:
    """The middle value, or the mean of the middle two; NaN of no values, and where one is NaN."""
    given = np.asarray(values).reshape(-1)
    if not len(given):
        return float("nan")
    below, above = (len(given) - 1) // 2, len(given) // 2
    ordered = np.partition(given, (below, above, len(given) - 1))  # NaN sorts last
    last = float(ordered[-1])
    return (float(ordered[below]) + float(ordered[above])) / 2 if last == last else last
