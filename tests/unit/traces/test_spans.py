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


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        made((3, 2))


def test_sets_of_nothing_are_nothing() -> None:
    some = made((1, 2))
    assert spans.join() is EMPTY
    assert spans.intersect(EMPTY, some) is EMPTY
    assert pairs(spans.subtract(some, EMPTY)) == [(1, 2)]
    assert pairs(spans.subtract(EMPTY, some)) == []
    assert pairs(spans.gaps(EMPTY, low=3, high=8)) == [(3, 8)]
    assert spans.covered_before(EMPTY, np.array([1, 2])).tolist() == [0, 0]
