"""Microseconds to nanoseconds, exactly."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.traces.wire import FLOAT_LIMIT_US, RANGE_US, from_floats, from_texts


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
    "text",
    ["", "null", "true", "x", "1.2.345", "1.2.3", "NaN", "inf", "1e999999999", "9" * 30, "-1e17", '"', "é"],
)
def test_anything_else_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|number"):
        from_texts([text.encode()])


@given(st.integers(-(2**43) * 1000 + 1000, 2**43 * 1000 - 1000))
def test_floats_below_the_limit_tell_every_nanosecond(ns: int) -> None:
    text = str(Decimal(ns) / 1000)
    assert abs(float(text)) < FLOAT_LIMIT_US
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
