"""Columns that grow block by block, and numbers that do not fit them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.traces.load import load_traces
from stepscope.traces.wire import GrowingColumn, as_number, device_rows, from_texts, narrow, snug, wide

ONE = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":10.500,"dur":2.250,'
    b'"args":{"stream":4294967295,"correlation":3}}'
)


def test_values_come_back_in_order_over_many_blocks() -> None:
    column = GrowingColumn(np.int64)
    for start in range(0, 400_000, 1000):
        column.append(np.arange(start, start + 1000))
    assert np.array_equal(column.joined(), np.arange(400_000))


def test_an_empty_column_keeps_its_type() -> None:
    assert GrowingColumn(np.int8).joined().dtype == np.int8


def test_numbers_that_do_not_fit_count_as_not_recorded() -> None:
    assert wide([1, 2**70, -(2**70)]).tolist() == [1, -1, -1]
    assert narrow(np.array([7, 2**32 - 1, -5])).tolist() == [7, -1, -1]


@pytest.mark.parametrize(("written", "number"), [(7, 7), ("7", 7), ("0x0", -1), ("", -1), ("9" * 30, -1)])
def test_text_counts_as_a_number_only_when_it_is_digits(written: int | str, number: int) -> None:
    assert as_number(written) == number


@pytest.mark.parametrize("odd", [b"5", b"-4.125", b"1712195495505582.9881", b'"12.345"', b"99.1234", b"4e3"])
def test_one_odd_time_among_many_alike_is_read_exactly(odd: bytes) -> None:
    texts = [b"1712195495505582.988", b"1712195495505583.001"] * 100
    expected = from_texts([odd]).tolist()[0]
    assert from_texts([*texts, odd]).tolist() == [1712195495505582988, 1712195495505583001] * 100 + [expected]


def test_times_beyond_the_range_are_refused_in_bulk_as_one_by_one() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        from_texts([b"9999999999999999.999"] * 100)


@pytest.mark.parametrize("space", [b"", b" ", b"\n    "])
def test_the_scan_reads_other_writers_layouts(space: bytes) -> None:
    block = ONE.replace(b",", b"," + space).replace(b":", b":" + space.strip(b"\n")[:1])
    assert device_rows(block, kineto=False) == [(b"kernel", b"k", b"0", b"7", b"10.500", b"2.250")]


def test_an_unset_stream_is_that_of_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(b'{"traceEvents":[' + ONE + b"]}")
    events = load_traces(path).ranks[0].events
    assert events.stream.tolist() == [7]


@pytest.mark.parametrize(
    ("numbers", "least", "dtype"),
    [
        ([-1, 127], np.int8, np.int8),
        ([-1, 128], np.int8, np.int16),
        ([-129], np.int8, np.int16),
        ([2**15], np.int8, np.int32),
        ([2**31 - 1], np.int8, np.int32),
        ([2**31], np.int8, np.int64),
        ([3], np.int32, np.int32),
        ([], np.int8, np.int8),
    ],
)
def test_the_narrowest_type_that_holds_a_column(numbers: list[int], least: type, dtype: type) -> None:
    made = snug(np.array(numbers, dtype=np.int64), least=least)
    assert made.dtype == dtype
    assert made.tolist() == numbers
