"""A folder is a registry: file stem = key, one upper-case symbol per file. Entries of a few lines stand in one table.

Names are listed without importing the files, so that ``--help`` and error messages stay cheap. Third parties
add entries through the entry-point group ``stepscope.<folder>`` (``stepscope.rank.strategies`` for implementations).
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.words import unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """The plugins of one package; ``symbol`` is the name each file exports.

    specs: for a folder of implementations, the package whose files of the same stems they carry out.
    table: the entries of the package by key, where they are not a file each.
    """

    package: str
    symbol: str
    kind: str
    specs: str | None = None
    table: Mapping[str, T] | None = None

    def names(self) -> tuple[str, ...]:
        """All keys, sorted; imports the package itself and none of its files."""
        return tuple(sorted({*self.shipped, *self._foreign()}))

    def load(self, key: str) -> T:
        """Import the file behind ``key`` and return its symbol. Unknown key: UsageError with did-you-mean."""
        if self.table is not None and key in self.table:
            return self.table[key]
        if key in self.shipped:
            module = f"{self.package}.{key}"
            return cast(T, getattr(importlib.import_module(module), self.symbol))
        entry = self._foreign().get(key)
        if entry is None and self.specs is not None and key in Registry(self.specs, "", self.kind).names():
            raise self._no_implementation(key, self.specs)
        if entry is None:
            raise UsageError(unknown(self.kind, key, self.names()))
        try:
            return cast(T, entry.load())
        except (ImportError, AttributeError) as error:
            raise StepscopeError(
                f"the {self.kind} {key!r} from {entry.value!r} cannot be loaded",
                why=str(error),
                fix=f"repair or uninstall the package that registers it under {entry.group!r}",
            ) from error

    def written(self, key: str, fields: Iterable[str]) -> dict[str, Any]:
        """Return field -> literal value of the ``fields`` that a shipped entry's file states, without importing the file."""
        import re  # most commands list names only
        from ast import literal_eval

        (folder,) = importlib.import_module(self.package).__path__
        text = Path(folder, f"{key}.py").read_text(encoding="utf-8").rpartition(f"\n{self.symbol} = ")[2]
        literals = {name: re.search(rf'\b{name}=(\([^()]*\)|"[^"]*"|\d+|True|False)', text) for name in fields}
        return {name: literal_eval(value[1]) for name, value in literals.items() if value is not None}

    def _no_implementation(self, key: str, specs: str) -> UsageError:
        """Return the error of an entry that states what nothing implements."""
        file = importlib.import_module(self.package).__file__ or self.package
        place = file if self.table is not None else file.replace("__init__", key)
        return UsageError(
            f"the {self.kind} {key!r} has a spec and no implementation: it is not in {place}",
            why=f"{specs}.{key} says what it does; what a rank runs is {self.symbol!r} in {self.package}.{key}",
            fix=f"write that file, or register the implementation under the entry-point group {self.package!r}",
        )

    @property
    def shipped(self) -> frozenset[str]:
        """The keys of the package's own entries."""
        return _files_of(self.package) if self.table is None else frozenset(self.table)

    def _foreign(self) -> dict[str, EntryPoint]:
        if not _may_register(self.package.encode(), tuple(sys.path)):
            return {}
        from importlib.metadata import entry_points  # takes longer than most commands need to start

        return {e.name: e for e in entry_points(group=self.package)}


@contextmanager
def uncollected() -> Iterator[None]:
    """Import within the block without garbage collections; what is there at its end stays, and is never looked through."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _may_register(group: bytes, path: tuple[str, ...]) -> bool:
    """Return False where no package on ``path`` names the group, for which importlib.metadata takes 20 ms of a start-up."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    written = _entry_points(path)
    return written is None or group in written


@cache
def _entry_points(path: tuple[str, ...]) -> bytes | None:
    """Return what the packages on ``path`` register, as written, or None where something other than a folder lies on it."""
    texts = []
    for folder in path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208
        except NotADirectoryError:
            return None
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:  # noqa: PTH123, PTH118
                    texts.append(file.read())
    return b"\n".join(texts)


@cache
def _files_of(package: str) -> frozenset[str]:
    """Stems of the public files of a package, listed once: no file is added while a command runs."""
    folder = importlib.import_module(package).__path__
    return frozenset(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("_"))
