"""Typed access to a foreign JSON document: every complaint names the file and the place in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stepscope.core.errors import DataError
from stepscope.store.importers._json import finite, read_json, whole

T = TypeVar("T")


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
    """The JSON object in a file. Raises DataError where it is damaged or holds something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no JSON object", why=f"it holds {_short(found)}")
    return Fields(str(path), found)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
