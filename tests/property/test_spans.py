"""Span algebra against sets of integers."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats import spans
from stepscope.stats.spans import Spans, union

LOW, HIGH = -40, 40
interval = st.tuples(st.integers(LOW, HIGH), st.integers(0, 15)).map(lambda t: (t[0], min(t[0] + t[1], HIGH)))
intervals = st.lists(interval.filter(lambda p: p[0] <= p[1]), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Spans:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {x for start, end in pairs for x in range(start, end)}


def inside(s: Spans) -> set[int]:
    """The integers in it; checks on the way that the set is in its normal form."""
    assert (s.ends > s.starts).all()
    assert (s.starts[1:] > s.ends[:-1]).all()
    assert s.starts.dtype == s.ends.dtype == np.int64
    return points(list(zip(s.starts.tolist(), s.ends.tolist(), strict=True)))


@given(intervals)  # in any order
def test_union_covers_what_its_intervals_cover(a: list[tuple[int, int]]) -> None:
    assert inside(made(a)) == points(a)
    assert made(a).measure == len(points(a))


@given(intervals, intervals, intervals)
def test_set_operations_are_those_of_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    x, y, z = made(a), made(b), made(c)
    assert inside(spans.join(x, y, z)) == points(a) | points(b) | points(c)
    assert inside(spans.intersect(x, y)) == points(a) & points(b)
    assert inside(spans.subtract(x, y)) == points(a) - points(b)
    assert inside(spans.subtract(spans.subtract(x, y), z)) == points(a) - points(b) - points(c)


@given(intervals, st.integers(LOW - 5, HIGH + 5), st.integers(LOW - 5, HIGH + 5))
def test_gaps_and_clip_share_out_a_window(a: list[tuple[int, int]], low: int, high: int) -> None:
    window = set(range(low, high))
    assert inside(spans.gaps(made(a), low=low, high=high)) == window - points(a)
    assert inside(spans.clip(made(a), low=low, high=high)) == window & points(a)


@given(intervals, st.lists(st.tuples(st.integers(LOW - 5, HIGH + 5), st.integers(0, 30)), max_size=8))
def test_measures_inside_windows_are_counts(a: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts = np.array([w[0] for w in windows], dtype=np.int64)
    ends = starts + np.array([w[1] for w in windows], dtype=np.int64)
    expected = [len(points(a) & set(range(s, e))) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert spans.measure_within(made(a), starts, ends).tolist() == expected
    with patch.object(spans, "WINDOWS_AT_ONCE", 3):
        assert spans.measure_within(made(a), starts, ends).tolist() == expected
    before = [len({x for x in points(a) if x < p}) for p in starts.tolist()]
    assert spans.covered_before(made(a), starts).tolist() == before
