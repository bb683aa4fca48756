"""Distinct values and the median of plain arrays.

``np.unique`` and ``np.median`` ask whether their array is masked, and import numpy.ma for it: 15 ms of every process that
reads a trace.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

T = TypeVar("T", bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Each value once, ascending, shape (count,): ``np.unique`` of anything without NaN."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def median(values: ArrayLike) -> float:
    """The middle value, or the mean of the middle two; NaN of no values, and where one is NaN."""
    given = np.asarray(values).reshape(-1)
    if not len(given):
        return float("nan")
    below, above = (len(given) - 1) // 2, len(given) // 2
    ordered = np.partition(given, (below, above, len(given) - 1))  # NaN sorts last
    last = float(ordered[-1])
    return (float(ordered[below]) + float(ordered[above])) / 2 if last == last else last
