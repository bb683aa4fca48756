"""One cell of a published table as a number, or why it is none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from stepscope.core.errors import UsageError

_NOTHING = {"", "-", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s*(%|k|m|b|t)?")
_TIMES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST_WHOLE = 10**12
"""Of a count; beyond, a slip."""


def number(row: Mapping[str, str], column: str) -> float | None:
    """``250k`` is 250000, ``1,024`` is 1024, ``40%`` is 40; None where nothing is stated.

    Raises UsageError for anything else that is no finite number.
    """
    text = (row.get(column) or "").strip().lower()
    if text in _NOTHING:
        return None
    found = _NUMBER.fullmatch(text)
    try:
        value = float(found[1].replace(",", "")) * _TIMES.get(found[2] or "", 1.0) if found else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{column}: a value that is not a number", why=text[:40])
    return value


def above_zero(row: Mapping[str, str], column: str) -> float | None:
    """A speed, a time, a size: zero stands for none measured."""
    value = number(row, column)
    if value is not None and value < 0:
        raise UsageError(f"{column} is below zero", why=f"{value:g}")
    return value or None


def whole(row: Mapping[str, str], column: str, *, least: int = 1) -> int | None:
    """A count, ``least`` or more."""
    value = number(row, column)
    if value is None:
        return None
    if value != round(value) or not least <= value <= _MOST_WHOLE:
        raise UsageError(f"{column} is not a whole number of {least} or more", why=f"{value:g}")
    return round(value)
