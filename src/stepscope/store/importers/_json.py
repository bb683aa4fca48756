"""JSON as Python programs write it: with NaN and Infinity, which are no figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.store.reader import read_bytes

MAX_BYTES = 256 << 20
"""More than any result file of a benchmark has: a few KB a run."""


def refuse_large(path: Path) -> None:
    """Raises DataError for a file that no benchmark writes: its JSON would not fit into memory."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error
    if size > MAX_BYTES:
        raise DataError(
            f"{path}: too large for a file of results",
            why=f"{size} bytes, and {MAX_BYTES} are the limit",
            fix="pass the benchmark's own JSON",
        )


def read_json(path: Path) -> Any:
    """The document; NaN and Infinity become float values that ``finite`` refuses. Raises DataError with line and column."""
    refuse_large(path)
    data = read_bytes(path)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text", why=f"byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}:{error.colno}: not readable as JSON",
            why=_why(data, error),
            fix="copy the file again, or write it again with the tool that created it",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON", why=str(error) or type(error).__name__) from error


def finite(value: Any) -> float | None:
    """A finite number as float; None for everything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive(value: Any) -> float | None:
    """A finite number above 0, else None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def count(value: Any) -> int | None:
    """A whole number of 1 or more, else None."""
    number = whole(value)
    return number if number is not None and number >= 1 else None


def whole(value: Any) -> int | None:
    """A whole number, also one that a program wrote as 8.0; else None."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _why(data: bytes, error: json.JSONDecodeError) -> str:
    if not data.strip():
        return "the file is empty"
    if not data.strip(b"\0"):
        return "it holds nothing but zero bytes: it was created but never written"
    if error.pos >= len(error.doc.rstrip()):
        return "it ends in the middle of a value: it was cut off"
    return error.msg
