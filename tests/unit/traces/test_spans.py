"""Span algebra on small cases; the general laws are in tests/property/test_spans.py."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.stats import spans
from stepscope.stats.spans import EMPTY, Spans, union


def made(*pairs: tuple[int, int]) -> Spans:
    return union(np.array([p[0] for p in pairs], dtype=np.int64), np.array([p[1] for p in pairs], dtype=np.int64))


def pairs(s: Spans) -> list[tuple[int, int]]:
    return list(zip(s.starts.tolist(), s.ends.tolist(), strict=True))


def test_touching_and_overlapping_intervals_merge_and_empty_ones_vanish() -> None:
    assert pairs(made((5, 7), (0, 2), (2, 3), (6, 9), (4, 4), (1, 2))) == [(0, 3), (5, 9)]
    assert pairs(made((3, 3))) == []
    assert made((0, 10), (2, 3), (4, 12)).measure == 12


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        made((3, 2))


def test_the_parts_of_a_window_sum_to_it() -> None:
    compute, comm = made((0, 10), (20, 30)), made((5, 25), (40, 41))
    window = made((0, 50))
    busy = spans.join(compute, comm)
    exposed = spans.subtract(comm, compute)
    idle = spans.subtract(window, busy)
    assert exposed.measure == 11
    assert compute.measure + exposed.measure + idle.measure == 50
    assert pairs(spans.intersect(compute, comm)) == [(5, 10), (20, 25)]


def test_sets_of_nothing_are_nothing() -> None:
    some = made((1, 2))
    assert spans.join() is EMPTY
    assert spans.intersect(EMPTY, some) is EMPTY
    assert pairs(spans.subtract(some, EMPTY)) == [(1, 2)]
    assert pairs(spans.subtract(EMPTY, some)) == []
    assert pairs(spans.gaps(EMPTY, low=3, high=8)) == [(3, 8)]
    assert spans.covered_before(EMPTY, np.array([1, 2])).tolist() == [0, 0]


def test_times_of_19_digits_do_not_overflow() -> None:
    base = 1_712_195_495_505_582_988
    big = made((base, base + 3), (base + 1, base + 9))
    assert (big.measure, pairs(big)) == (9, [(base, base + 9)])
