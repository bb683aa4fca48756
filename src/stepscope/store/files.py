"""Looking at foreign files before anything is known about them, and pickles of plain values: a pickle can run any code,
these are not let to.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import nearest_path

MAX_FILES = 100_000
_ABOUT = ("readme", "license", "licence")
"""Files that no one expects to be read."""
_CLOSING = (b" ", b"\t", b"\r", b"|", b"%", b")", b"]", b"}")
"""Nothing of a word comes after them."""
_LONGEST_WORD = 4096
MAX_NAME = 200
"""Characters of a path that a message repeats where the path itself is what is wrong."""


def require_there(path: Path) -> None:
    """Raises DataError for what is not there, cannot be looked at, or has no end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{path} is a link to a file that does not exist" if path.is_symlink() else f"{path} does not exist"
        raise DataError(what, fix=nearest_path(path)) from error
    except (OSError, ValueError) as error:  # a name too long, a link to itself; a zero byte in the name
        raise DataError(
            f"{str(path)[:MAX_NAME]}: cannot be read",
            why=getattr(error, "strerror", None) or str(error),
            fix="check the path and its permissions",
        ) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: not a file", why="it is a device, a pipe or a socket", fix="write it to a file first")


def opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The file's bytes to read, unpacked where it is gzip. Raises OSError; reading may raise EOFError, zlib.error."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(path) if packed else path.open("rb")


def whole_words(text: bytes) -> tuple[bytes, bytes]:
    """(what is surely whole of a line without its end, the word that may go on)."""
    if text[-1:] in _CLOSING:
        return text, b""
    at = max(text.rfind(space, -_LONGEST_WORD) for space in (b" ", b"\t", b"\r")) + 1
    return (text[:at], text[at:]) if at or len(text) < _LONGEST_WORD else (text, b"")


@contextmanager
def reading(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """The file's bytes; a .gz that was cut off ends the body there. Raises DataError for a file that cannot be read."""
    try:
        with opened(path) as file:
            yield file
    except EOFError:
        pass  # what came before counts
    except (OSError, zlib.error) as error:
        raise DataError(f"cannot read {path}", why=getattr(error, "strerror", None) or str(error)) from error


def head_of(path: Path, size: int) -> bytes:
    """Up to ``size`` bytes of the file's text; empty where it cannot be read (the importer asked to read it says why)."""
    head = b""
    try:
        with opened(path) as file:
            while len(head) < size and (more := file.read1(size - len(head))):
                head += more
    except (OSError, EOFError, zlib.error):
        pass  # a .gz that was cut off: what came before tells what it is
    return head


def files_below(folder: Path) -> tuple[Path, ...]:
    """Files in a folder and below it, sorted by path; hidden files and folders are left out, and what cannot be looked at.

    Raises DataError for more than ``MAX_FILES``.
    """
    found: list[Path] = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
        if len(found) > MAX_FILES:
            raise DataError(
                f"{folder} holds more than {MAX_FILES} files",
                why="it is not a folder of results",
                fix="pass the folder of one experiment",
            )
    return tuple(path for path in sorted(found) if _is_file(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def is_about(path: Path) -> bool:
    """Whether a file of a folder only describes it."""
    return path.stem.lower() in _ABOUT


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
