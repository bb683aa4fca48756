"""Columns that grow block by block, and the integer columns of an event's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import NONE

INT32_MAX = 2**31 - 1
_FIRST = 1 << 12
_GROWTH = 1.125


class GrowingColumn:
    """Values of one column in the order they come, in one array that grows in place: what is freed and taken again in
    between leaves memory in pieces."""

    def __init__(self, dtype: Any) -> None:
        self._values = np.empty(_FIRST, dtype=dtype)
        self._used = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add a block's values, shape (events of the block,)."""
        end = self._used + len(values)
        if end > len(self._values):
            self._values.resize(int(end * _GROWTH), refcheck=False)
        self._values[self._used : end] = values
        self._used = end

    def joined(self) -> NDArray[Any]:
        """All values so far as one array; the column is empty afterwards."""
        values, self._values = self._values, np.empty(0, dtype=self._values.dtype)
        values.resize(self._used, refcheck=False)
        self._used = 0
        return values


def wide(values: Sequence[int]) -> NDArray[np.int64]:
    """int64, with NONE for what does not fit."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([v if -(2**63) <= v < 2**63 else NONE for v in values], dtype=np.int64)


def narrow(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32, with NONE for what does not fit: CUPTI writes an unset stream as 2**32 - 1."""
    return np.where((values > INT32_MAX) | (values < 0), NONE, values).astype(np.int32)


def snug(values: NDArray[Any], *, least: type[np.signedinteger[Any]] = np.int8) -> NDArray[Any]:
    """The same numbers in the narrowest type, from ``least`` on, that holds them: half the memory of a trace is columns."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    kinds: tuple[type[np.signedinteger[Any]], ...] = (np.int8, np.int16, np.int32)
    for dtype in kinds[kinds.index(least) :]:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return values.astype(dtype, copy=False)
    return values


def as_number(value: int | str) -> int:
    """A number, or digits as ROCm's runtime writes some of them; NONE for other text (a pointer)."""
    if isinstance(value, int):
        return value
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else NONE
