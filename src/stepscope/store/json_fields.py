"""JSON as Python programs write it: with NaN and Infinity, which are no figures; every complaint names file and place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stepscope.core.errors import DataError
from stepscope.store.reader import read_bytes

T = TypeVar("T")

MAX_BYTES = 256 << 20
"""More than any result file of a benchmark has: a few KB a run."""


def read_json(path: Path) -> Any:
    """The document; NaN and Infinity become float values that ``finite`` refuses. Raises DataError with line and column, and
    for a file that no benchmark writes: its JSON would not fit into memory."""
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


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a JSON file. at: where it stands in there (``results[3].memory``), empty for the whole."""

    source: str
    values: Mapping[str, Any]
    at: str = ""

    def number(self, key: str) -> float:
        """A finite number."""
        value = finite(self._get(key))
        if value is None:
            raise self.wrong(key, "a number")
        return value

    def positive(self, key: str) -> float:
        """A finite number above 0."""
        value = self.number(key)
        if value <= 0:
            raise self.wrong(key, "a number above 0")
        return value

    def amount(self, key: str) -> float:
        """A finite number, 0 or more."""
        value = self.number(key)
        if value < 0:
            raise self.wrong(key, "a number, 0 or more")
        return value

    def whole(self, key: str) -> int:
        """A whole number, 0 or more; also written as 8.0."""
        value = whole(self._get(key))
        if value is None or not 0 <= value < 2**62:
            raise self.wrong(key, "a whole number, 0 or more")
        return value

    def count(self, key: str) -> int:
        """A whole number of 1 or more."""
        value = self.whole(key)
        if value == 0:
            raise self.wrong(key, "a whole number of 1 or more")
        return value

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def part(self, key: str) -> Fields:
        """An object inside this one."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(self.source, value, self._path(key))

    def parts(self, key: str) -> tuple[Fields, ...]:
        """A list of objects."""
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.wrong(key, "a list of objects")
        return tuple(Fields(self.source, each, f"{self._path(key)}[{i}]") for i, each in enumerate(value))

    def maybe(self, how: Callable[[str], T], key: str) -> T | None:
        """``how(key)``, or None where the key is missing or null."""
        return None if self.values.get(key) is None else how(key)

    def plain(self, *keys: str) -> dict[str, Any]:
        """Those of the keys that are there and hold a text, a number or a truth value."""
        return {key: self.values[key] for key in keys if isinstance(self.values.get(key), str | int | float | bool)}

    def wrong(self, key: str, expected: str) -> DataError:
        """The error for a field that is not what it has to be."""
        return DataError(
            f"{self.source}: {self._path(key)} is {_short(self.values.get(key))}",
            why=f"expected {expected}",
            fix="write the file again with the tool that created it",
        )

    def _get(self, key: str) -> Any:
        if key not in self.values:
            has = ", ".join(list(self.values)[:8])
            raise DataError(
                f"{self.source}: no {self._path(key)}",
                why=f"there are: {has}" if has else "the object is empty",
                fix="write the file again with the tool that created it",
            )
        return self.values[key]

    def _path(self, key: str) -> str:
        return f"{self.at}.{key}" if self.at else key


def read_fields(path: Path) -> Fields:
    """The JSON object in a file. Raises DataError where it is damaged, far too large, or holds something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no JSON object", why=f"it holds {_short(found)}")
    return Fields(str(path), found)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
