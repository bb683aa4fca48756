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


def from_floats(values_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Nanoseconds of values below FLOAT_LIMIT_US in size; whole numbers of any size are exact too.

    Whole and fraction are scaled apart: one product of the full value would round a second time.
    """
    whole = np.floor(values_us)
    fraction = np.rint((values_us - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def from_texts(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Nanoseconds of decimal texts such as ``1712195495505582.988``; raises ValueError for anything else."""
    return np.array(
        [int(t[:-4] + t[-3:]) if t[-4:-3] == b"." else _exact(t) for t in texts],
        dtype=np.int64,
    )


def from_text(text: bytes) -> int:
    """Nanoseconds of one decimal text; see ``from_texts``."""
    return int(text[:-4] + text[-3:]) if text[-4:-3] == b"." else _exact(text)


def _exact(text: bytes) -> int:
    if text.isdigit():
        return int(text) * 1000
    try:
        return int((Decimal(text.decode("ascii")) * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"not a number of microseconds: {text!r}") from error
