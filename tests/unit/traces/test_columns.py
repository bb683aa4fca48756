"""Columns that grow block by block, and numbers that do not fit them.

Microseconds to nanoseconds, exactly.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.traces.load import load_traces
from stepscope.traces.wire import (
    RANGE_US,
    as_number,
    from_floats,
    from_texts,
    narrow,
    snug,
    wide,
)

ONE = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":10.500,"dur":2.250,'
    b'"args":{"stream":4294967295,"correlation":3}}'
)


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


def exact(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    "text",
    [
        "0", "1", "-1", "0.001", "-0.001", "-0.5", "1.5", "1712195495505582.988", "1712195495505582", "1.5e3", "2E-3",
        "1.5e+03", "12.3456", "0.0005", "0.0015", "123456789.1", "1e15", "9007199254740992", "4203669604595.407",
    ],
)  # fmt: skip
def test_a_text_is_taken_digit_by_digit(text: str) -> None:
    assert from_texts([text.encode()]).tolist() == [exact(text)]
    assert from_texts([f'"{text}"'.encode()]).tolist() == [exact(text)]
    assert from_texts([b"1.000", text.encode(), b"2"]).tolist() == [1000, exact(text), 2000]


@pytest.mark.parametrize(
    "text", ["", "null", "true", "x", "1.2.345", "1.2.3", "NaN", "inf", "1e999999999", "9" * 30, "-1e17", '"', "é"]
)
def test_anything_else_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|number"):
        from_texts([text.encode()])


@given(st.integers(-(2**43) * 1000 + 1000, 2**43 * 1000 - 1000))
def test_floats_below_the_limit_tell_every_nanosecond(ns: int) -> None:
    text = str(Decimal(ns) / 1000)
    assert abs(float(text)) < 2.0**43
    assert from_floats(np.array([float(text)])).tolist() == [ns]
    assert from_texts([text.encode()]).tolist() == [ns]


@given(st.integers(-int(RANGE_US), int(RANGE_US)))
def test_whole_microseconds_of_any_size_are_exact(us: int) -> None:
    assert from_floats(np.array([float(us)])).tolist() == [us * 1000]
    assert from_texts([str(us).encode()]).tolist() == [us * 1000]


@pytest.mark.parametrize("value", [1e300, -1e300, float("nan"), float("inf"), 2.0**53 + 2])
def test_floats_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        from_floats(np.array([1.0, value]))


def test_nothing_gives_nothing() -> None:
    assert from_texts([]).tolist() == from_floats(np.empty(0)).tolist() == []
