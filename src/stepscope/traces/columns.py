"""Columns that grow block by block, and the integer columns of an event's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import NONE

INT32_MAX = 2**31 - 1
_BLOCK_EVENTS = 1 << 17


class Column:
    """Values of one column in the order they come; joined now and then, so that memory does not fragment."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []
        self._blocks: list[NDArray[Any]] = []
        self._pending = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add a block's values, shape (events of the block,)."""
        self._parts.append(values)
        self._pending += len(values)
        if self._pending >= _BLOCK_EVENTS:
            self._blocks.append(np.concatenate(self._parts))
            self._parts.clear()
            self._pending = 0

    def joined(self) -> NDArray[Any]:
        """All values so far as one array."""
        parts = [*self._blocks, *self._parts]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._dtype)


def wide(values: Sequence[int]) -> NDArray[np.int64]:
    """int64, with NONE for what does not fit."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([v if -(2**63) <= v < 2**63 else NONE for v in values], dtype=np.int64)


def narrow(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32, with NONE for what does not fit: CUPTI writes an unset stream as 2**32 - 1."""
    return np.where((values > INT32_MAX) | (values < 0), NONE, values).astype(np.int32)


def as_number(value: int | str) -> int:
    """A number, or digits as ROCm's runtime writes some of them; NONE for other text (a pointer)."""
    if isinstance(value, int):
        return value
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else NONE
