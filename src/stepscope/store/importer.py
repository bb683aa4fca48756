"""What an importer is, and formats of which a folder holds several files: which of them are known, and reading them all.

Looking at foreign files before anything is known about them, and pickles of plain values: a pickle can run any code,
these are not let to.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import pickle
import re
import stat
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, unreadable
from stepscope.core.words import listed, nearest_path
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.store.layout import holds_record

MAX_FILES = 100_000
_ABOUT = ("readme", "license", "licence")
"""Files that no one expects to be read."""
_CLOSING = (b" ", b"\t", b"\r", b"|", b"%", b")", b"]", b"}")
"""Bytes that end a word."""
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
        raise unreadable(str(path)[:MAX_NAME], error) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: not a file", why="it is a device, a pipe or a socket", fix="write it to a file first")


def opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for its bytes, unpacked where it is gzip, as UTF-8 where it says that it is UTF-16.

    Raises OSError; reading may raise EOFError, zlib.error.
    """
    with path.open("rb") as file:
        start = file.read(3)
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(path)
    if start[:2] in _WIDE:
        return io.BufferedReader(_Narrowed(path))
    file = path.open("rb")
    if start == codecs.BOM_UTF8:
        file.seek(len(start))
    return file


_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _Narrowed(io.RawIOBase):
    """A file of UTF-16, read as UTF-8."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (block := self._file.read(HEAD_BYTES)):
            self._rest = self._decoder.decode(block).encode(errors="replace")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def whole_words(text: bytes) -> tuple[bytes, bytes]:
    """Split a line without its end into (what is surely whole, the word that may go on)."""
    if text[-1:] in _CLOSING:
        return text, b""
    at = max(text.rfind(space, -_LONGEST_WORD) for space in (b" ", b"\t", b"\r")) + 1
    return (text[:at], text[at:]) if at or len(text) < _LONGEST_WORD else (text, b"")


@contextmanager
def reading(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Open a file's bytes for the block; a .gz that was cut off ends it there. Raises DataError for an unreadable file."""
    try:
        with opened(path) as file:
            yield file
    except EOFError:
        pass  # what came before counts
    except (OSError, zlib.error) as error:
        raise DataError(f"cannot read {path}", why=getattr(error, "strerror", None) or str(error)) from error


def head_of(path: Path, size: int) -> bytes:
    """Read up to ``size`` bytes of the file's text; empty where it cannot be read (the importer that reads it says why)."""
    head = b""
    try:
        with opened(path) as file:
            while len(head) < size and (more := file.read1(size - len(head))):
                head += more
    except (OSError, EOFError, zlib.error):
        pass  # a .gz that was cut off: what came before tells what it is
    return head


def files_below(folder: Path) -> tuple[Path, ...]:
    """List the files in and below a folder, sorted by path, without hidden files and folders and what cannot be looked at.

    Raises DataError for more than ``MAX_FILES``.
    """
    paths: list[Path] = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        paths += [Path(place, name) for name in names if not name.startswith(".")]
        if len(paths) > MAX_FILES:
            raise DataError(
                f"{folder} holds more than {MAX_FILES} files",
                why="it is not a folder of results",
                fix="pass the folder of one experiment",
            )
    return tuple(path for path in sorted(paths) if _is_readable_file(path))


def _is_readable_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def is_about(path: Path) -> bool:
    """Return whether a file of a folder only describes the folder."""
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
    """Load a pickle of plain values. Raises DataError for one with code in it, and for a damaged one.

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


NAMED = 5
"""Files left out that a note names one by one."""

OTHER_KIND = "of another kind"
"""The reason for which a reader leaves out a file that is not for it."""

HEAD_BYTES = 64 << 10
"""Bytes that a file is recognised by: enough for the header lines that a launcher puts before the tool's own."""

START_BYTES = 1 << 20
"""Bytes that a job's log is recognised by: launch scripts that echo themselves put up to 100 KB before the first line."""


@dataclass(frozen=True)
class Candidate:
    """A path that some importer may know. A folder has no ``head``; look at ``files``. stated: what the user says of it.

    only: of a folder, the files that are meant; None: all of them.
    """

    path: Path
    stated: Stated = field(default_factory=Stated)
    only: tuple[Path, ...] | None = None

    @cached_property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, unpacked where it is gzip; empty for a folder and for what cannot be read."""
        return b"" if self.is_folder else head_of(self.path, HEAD_BYTES)

    @cached_property
    def start(self) -> bytes:
        """The first MiB, as ``head``."""
        return self.head if len(self.head) < HEAD_BYTES else head_of(self.path, START_BYTES)

    @cached_property
    def text(self) -> str:
        """``head`` as text; undecodable bytes become replacement characters."""
        return self.head.decode("utf-8", errors="replace")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Files below a folder, sorted, hidden ones left out; for a file, itself."""
        if self.only is not None:
            return self.only
        return files_below(self.path) if self.is_folder else (self.path,)


@record
class Form:
    """What an importer's file declares of the files that it reads, so that it loads only for those that may be its own.

    title: what it reads, in words for `did you mean` and the table of formats (``nccl-tests output``). rank: lower is
    asked first; a specific format goes before a general one. marks: texts of which one stands in every file's beginning
    or name. suffixes: of every file. Either empty: any. deep: the mark may stand behind the first 64 KiB.
    """

    title: str
    rank: int = 50
    marks: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    deep: bool = False

    def may_be(self, file: Candidate) -> bool:
        if self.suffixes and file.path.suffix.lower() not in self.suffixes:
            return False
        head = file.start if self.deep else file.head
        return not self.marks or any(mark.encode() in head or mark in file.path.name for mark in self.marks)


@record
class Importer(Form):
    """A registered importer; what it declares (:class:`Form`) is written as literals in its file.

    recognises: whether a file is for it; cheap (looks at ``Candidate.head`` or names), never raises.
    read_files: the content of ``Candidate.files``. Raises DataError (what, why, how to fix; file and line) for a damaged
    file; facts that two readings are possible of are not guessed: the run's ``missing`` says which.
    """

    recognises: Callable[[Candidate], bool]
    read_files: Callable[[Candidate], Imported]

    def read(self, path: Path, stated: Stated | None = None) -> Imported:
        """Read all of ``path``; notes name the files of a folder that were left out."""
        imported = self.read_files(Candidate(path, stated or Stated()))
        others = [_name_in_folder(file, path) for file in imported.left_out if file.reason == OTHER_KIND]
        notes = [
            f"{file.reason if file.path in file.reason else f'{_name_in_folder(file, path)}: {file.reason}'}; left out"
            for file in imported.left_out
            if file.reason != OTHER_KIND
        ]
        notes = [*notes[:NAMED], *([f"{len(notes) - NAMED} more files left out"] if notes[NAMED:] else [])]
        if others:
            notes.append(f"of another kind and not read: {listed(others, at_most=NAMED)}")
        return replace(imported, notes=(*imported.notes, *notes))


def _name_in_folder(left_out: LeftOut, folder: Path) -> str:
    return str(Path(left_out.path).relative_to(folder))


T = TypeVar("T")
Knows = Callable[[Candidate], bool]

LOOKED_AT = 200
"""Files of a folder that are opened to find out what it is."""


_TRACES = (".pt.trace.json", ".json.gz", ".sqlite", ".nsys-rep")
_TRACE_KEYS = re.compile(rb'"(?:traceEvents|ph|schemaVersion|deviceProperties)"\s*:')


def holds_traces(candidate: Candidate) -> bool:
    """Return whether traces or run folders of ours lie in a folder: they are what it is for, whatever else is there."""
    names = [file.name for file in candidate.files]
    likely = (file for file in candidate.files if file.suffix == ".json")
    return (
        any(file.name == "run.json" and holds_record(file, "run") for file in candidate.files)
        or any(name.endswith(_TRACES) for name in names)
        or any(_TRACE_KEYS.search(Candidate(file).head) for file in islice(likely, LOOKED_AT))
    )


def read_each(
    source: Candidate, knows: Knows, read: Callable[[Path], T], *, suffixes: Container[str]
) -> tuple[list[T], tuple[LeftOut, ...]]:
    """Read the file, or every known file of the folder; return what ``read`` makes of them and the files left out.

    A damaged file of a folder is left out with its reason. Raises its DataError where no other file is left.
    """
    if not source.is_folder:
        return [read(source.path)], ()
    contents: list[T] = []
    left_out: list[LeftOut] = []
    damaged: list[DataError] = []
    for file in source.files:
        if file.suffix.lower() not in suffixes or not knows(Candidate(file)):
            left_out += [LeftOut(path=str(file), reason=OTHER_KIND)] if not is_about(file) else []
            continue
        try:
            contents.append(read(file))
        except DataError as error:
            damaged.append(error)
            left_out.append(LeftOut(path=str(file), reason=error.line))
    if not contents:
        raise damaged[0] if damaged else DataError(f"{source.path} holds no file of this format")
    return contents, tuple(left_out)
