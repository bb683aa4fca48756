"""Pickles of plain values: numbers, texts, lists, dictionaries. A pickle can run any code; these are not let to."""

from __future__ import annotations

import io
import pickle
from typing import Any

from stepscope.core.errors import DataError

PROTOCOL_MARK = b"\x80"
"""The first byte of every pickle since protocol 2."""

_DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip


class _PlainOnly(pickle.Unpickler):
    """Finds no class and no function, and follows no reference out of the file."""

    def find_class(self, module: str, name: str) -> Any:
        raise _CodeInside(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _CodeInside(f"the outside object {pid!r}")


class _CodeInside(Exception):  # noqa: N818 - reads as what was met
    """The pickle asks for something to be imported."""


def plain_values(data: bytes, *, source: str, holds: str) -> Any:
    """What a pickle holds, plain values only. Raises DataError for one with code in it, and for a damaged one.

    holds: what such a file is, for the message: ``a memory snapshot``.
    """
    try:
        return _PlainOnly(io.BytesIO(data)).load()
    except _CodeInside as error:
        raise DataError(
            f"{source}: refused: the pickle imports {error}",
            why=f"{holds} must hold plain values only; loading anything else would run its code",
        ) from error
    except _DAMAGED as error:
        raise DataError(
            f"{source}: damaged pickle", why=str(error) or type(error).__name__, fix="copy the file again"
        ) from error
