"""Microseconds as the trace writes them -> integer nanoseconds, without losing a digit."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
from numpy.typing import NDArray

FLOAT_LIMIT_US = 2.0**43
"""Below this a float64 of microseconds still tells three decimals apart (spacing 2**-9.. / 2 < 0.0005).

Absolute unix microseconds (1.7e15) lie above it: there a float keeps only 0.25 us.
"""


RANGE_US = 2.0**53
"""No time in microseconds is larger (285 years): sums of two still fit 64 bits of nanoseconds."""


def from_floats(values_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Nanoseconds of values below FLOAT_LIMIT_US in size; whole numbers up to RANGE_US are exact too.

    Whole and fraction are scaled apart: one product of the full value would round a second time.
    Raises ValueError beyond RANGE_US and for NaN.
    """
    if not len(values_us):
        return np.empty(0, dtype=np.int64)
    if not np.abs(values_us).max() <= RANGE_US:
        raise ValueError("a time too large for 64 bits of nanoseconds")
    whole = np.floor(values_us)
    fraction = np.rint((values_us - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def from_texts(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Nanoseconds of decimal texts such as ``1712195495505582.988``, quoted or not.

    Raises ValueError for anything else and beyond RANGE_US.
    """
    alike = _three_decimals(texts) if len(texts) >= _WORTH_PACKING else None
    if alike is not None:
        return alike
    try:
        values = [int(t[:-4] + t[-3:]) if t[-4:-3] == b"." else _exact(t) for t in texts]
    except ValueError:
        values = [_exact(t) for t in texts]
    if values and max(max(values), -min(values)) > _RANGE_NS:
        raise ValueError("a time too large for 64 bits of nanoseconds")
    return np.array(values, dtype=np.int64)


_RANGE_NS = int(RANGE_US) * 1000
_WORTH_PACKING = 64
_LONGEST = 20  # characters; 10**19 still fits an unsigned 64-bit integer


def _three_decimals(texts: Sequence[bytes]) -> NDArray[np.int64] | None:
    """All texts at once when they are equally long, ``digits.ddd`` and in range; None otherwise."""
    packed = np.array(texts, dtype=np.bytes_)
    width = packed.dtype.itemsize
    if not 5 <= width <= _LONGEST:
        return None
    characters = packed.view(np.uint8).reshape(len(packed), width)
    if not (characters[:, -4] == ord(".")).all():
        return None
    digits = np.delete(characters, width - 4, axis=1) - np.uint8(ord("0"))
    if digits.max() > 9:  # a shorter text, too: it is padded with zero bytes
        return None
    powers = np.array([10**place for place in reversed(range(width - 1))], dtype=np.uint64)
    values = digits.astype(np.uint64) @ powers
    return values.astype(np.int64) if values.max() <= _RANGE_NS else None


def _exact(text: bytes) -> int:
    text = text.strip(b'" ')
    if text.isdigit() and len(text) < 20:
        return int(text) * 1000
    try:
        value = Decimal(text.decode("ascii"))
        if not value.is_finite() or value.adjusted() > 18:  # 1e999999999 would take all memory
            raise ValueError(f"not a time in microseconds: {text[:40]!r}")
        return int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"not a number of microseconds: {text[:40]!r}") from error
