"""Parents, self times and lookups of nested spans, against a slow tree that is obviously right."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.traces.events import NONE
from stepscope.traces.nesting import Nest, nest, union_by_group


def tree(spans: list[tuple[int, int, int]]) -> Nest:
    """Spans as (thread, start, end)."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return nest(np.arange(len(spans)), table[:, 0], table[:, 1], table[:, 2])


def parent_of(made: Nest) -> dict[int, int | None]:
    """Given index -> given index of its parent."""
    return {int(i): None if p == NONE else int(made.index[p]) for i, p in zip(made.index, made.parent, strict=True)}


spans_lists = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)).map(lambda t: (t[0], t[1], t[1] + t[2])),
    max_size=40,
)


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def test_a_span_lies_in_the_innermost_span_that_is_open_at_its_start() -> None:
    made = tree([(0, 0, 100), (0, 10, 50), (0, 20, 30), (0, 60, 70), (1, 15, 25)])
    assert parent_of(made) == {0: None, 1: 0, 2: 1, 3: 0, 4: None}


@given(spans_lists)
def test_self_times_sum_to_the_covered_time_of_each_thread(spans: list[tuple[int, int, int]]) -> None:
    made = tree(spans)
    for thread in {s[0] for s in spans}:
        mine = np.flatnonzero(made.thread == thread)
        roots = covered([(int(made.starts[i]), int(made.ends[i])) for i in mine])
        assert int(made.self_ns[made.thread == thread].sum()) == len(roots)
    assert (made.self_ns >= 0).all()


@given(spans_lists)
def test_every_span_ends_up_inside_its_parent_and_siblings_do_not_overlap(spans: list[tuple[int, int, int]]) -> None:
    made = tree(spans)
    for i, p in enumerate(made.parent.tolist()):
        if p != NONE:
            assert made.thread[p] == made.thread[i]
            assert made.starts[p] <= made.starts[i] <= made.ends[i] <= made.ends[p]
    for parent in {*made.parent.tolist()}:
        for thread in {*made.thread.tolist()}:
            mine = np.flatnonzero((made.parent == parent) & (made.thread == thread))
            assert (made.starts[mine[1:]] >= made.ends[mine[:-1]]).all()


@given(spans_lists)
def test_a_stack_gives_the_same_parents(spans: list[tuple[int, int, int]]) -> None:
    made = tree(spans)
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1], -spans[i][2], i))
    stack: list[tuple[int, int, int]] = []  # thread, end, index
    expected: dict[int, int | None] = {}
    for i in (i for i in order if spans[i][2] > spans[i][1]):
        thread, start, end = spans[i]
        while stack and (stack[-1][0] != thread or stack[-1][1] <= start):
            stack.pop()
        expected[i] = stack[-1][2] if stack else None
        stack.append((thread, min(end, stack[-1][1]) if stack else end, i))
    found = parent_of(made)
    assert {i: found[i] for i in expected} == expected


def depths(made: Nest) -> list[int]:
    depth: list[int] = []
    for parent in made.parent.tolist():  # which comes first
        depth.append(0 if parent == NONE else depth[parent] + 1)
    return depth


@given(spans_lists, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 45)), max_size=20))
def test_innermost_is_the_deepest_open_span(spans: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    made = tree(spans)
    depth = depths(made)
    threads, points = (np.array([a[k] for a in asked], dtype=np.int64) for k in (0, 1))
    for found, (thread, point) in zip(made.innermost(threads, points).tolist(), asked, strict=True):
        is_open = (made.thread == thread) & (made.starts <= point) & (point < made.ends)
        deepest = max(np.flatnonzero(is_open).tolist(), key=lambda i: (depth[i], i), default=NONE)
        assert found == deepest


@given(spans_lists)
def test_union_by_group_counts_overlaps_once(spans: list[tuple[int, int, int]]) -> None:
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    totals = union_by_group(table[:, 0], table[:, 1], table[:, 2], count=3)
    assert totals.tolist() == [len(covered([s[1:] for s in spans if s[0] == g])) for g in range(3)]
