"""Kernels that follow each other again and again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.hand_events import copy, kernel, op, trace

from stepscope.traces.kernels import sequence_rows


def runs(text: str, *, stream: int = 7, gap: int = 2):
    """One kernel of 10 ns per letter, ``gap`` ns between; a dash is a copy."""
    made = []
    for i, letter in enumerate(text):
        start = i * (10 + gap)
        make = copy if letter == "-" else kernel
        made.append(make(letter, start, start + 10, stream=stream))
    return made


def test_the_longest_repeated_sequence_stands_for_its_parts() -> None:
    found = sequence_rows(trace(*runs("abcXabcYabcZ")))
    assert [r.kernels for r in found] == [("a", "b", "c")]
    (row,) = found
    assert (row.count, row.total_ns, row.gap_ns, row.mean_ns) == (3, 90, 12, 34.0)
    assert row.share == 90 / 120


def test_a_shorter_sequence_that_occurs_more_often_is_listed_too() -> None:
    found = {r.kernels: r.count for r in sequence_rows(trace(*runs("abcXabcYabcZabWabV")))}
    assert found == {("a", "b", "c"): 3, ("a", "b"): 5}


def test_occurrences_do_not_overlap() -> None:
    found = {r.kernels: r.count for r in sequence_rows(trace(*runs("aaaaaaa")), lengths=(2,))}
    assert found == {("a", "a"): 3}


def test_a_copy_between_two_kernels_ends_a_sequence() -> None:
    found = sequence_rows(trace(*runs("a-ba-ba-b")), lengths=(2,), min_count=2)
    assert {r.kernels: r.count for r in found} == {("b", "a"): 2}


def test_kernels_of_two_streams_make_no_sequence() -> None:
    apart = [*runs("aaaa", gap=30), *runs("bbbb", stream=9, gap=30)]
    found = sequence_rows(trace(*apart), lengths=(2,), min_count=2)
    assert {r.kernels for r in found} == {("a", "a"), ("b", "b")}


def test_collectives_take_no_part() -> None:
    made = [kernel("ncclDevKernel_AllReduce" if i % 2 else "a", 20 * i, 20 * i + 10) for i in range(12)]
    assert sequence_rows(trace(*made)) == ()


def test_a_cpu_trace_has_no_sequences() -> None:
    assert sequence_rows(trace(op("aten::mm", 0, 5))) == ()


@given(st.text(alphabet="abc", min_size=2, max_size=40))
def test_pairs_are_counted_as_a_plain_loop_counts_them(text: str) -> None:
    expected: dict[tuple[str, str], int] = {}
    free: dict[tuple[str, str], int] = {}
    for i, pair in enumerate(pairwise(text)):
        if i >= free.get(pair, 0):
            expected[pair] = expected.get(pair, 0) + 1
            free[pair] = i + 2
    found = {r.kernels: r.count for r in sequence_rows(trace(*runs(text)), lengths=(2,), min_count=1)}
    assert found == expected
