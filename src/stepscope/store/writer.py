"""Writing that never leaves half a file, one controller per run folder, and records as flat CSV."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

from stepscope.core.errors import MissingError, UsageError
from stepscope.core.places import utc_now
from stepscope.records import codec


class WriteError(MissingError):
    """A file of the run folder cannot be written."""


_FIX = {
    errno.ENOSPC: "free some space or write to another folder",
    errno.EDQUOT: "your quota is full: free some space or write to another folder",
    errno.EACCES: "write to a folder in which you may create files",
    errno.EPERM: "write to a folder in which you may create files",
    errno.EROFS: "the file system is read-only: write to another folder",
}


def write_error(path: Path, error: OSError) -> WriteError:
    """Return the error that a user sees when ``path`` cannot be written."""
    return WriteError(
        f"cannot write {path}",
        why=error.strerror or str(error),
        fix=_FIX.get(error.errno or 0, "write to another folder"),
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises WriteError where the body cannot write ``path``."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def make_dir(path: Path) -> Path:
    """Make the folder ``path`` where it does not exist, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        obstacle = _no_folder(path)
        raise WriteError(
            f"{obstacle} is not a folder",
            why="files are to be written into it" if path == obstacle else f"{path} cannot be created in it",
            fix="write to another folder, or move that file away",
        ) from error
    except OSError as error:
        raise write_error(path, error) from error
    return path


class LineFile:
    """Records, one a line, on disk after every ``write``: a process that is killed leaves what it measured."""

    def __init__(self, path: Path, header: object, mode: Literal["ab", "wb"]) -> None:
        self._path = path
        make_dir(path.parent)
        new = mode == "wb" or not path.exists()
        with writing(path):
            self._file = path.open(mode)
        if new:
            self._write(codec.encode_line(header, header=True))

    def write(self, *records: object) -> None:
        self._write(b"".join(codec.encode_line(record) for record in records))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        with writing(self._path):
            self._file.write(data)
            self._file.flush()


def _no_folder(path: Path) -> Path:
    """Return the first part of ``path`` that exists and is something else than a folder."""
    return next(p for p in (*reversed(path.parents), path) if p.exists() and not p.is_dir())


def write_bytes(path: Path, data: bytes) -> None:
    """Write the whole file or nothing: a temporary file beside it, then a rename."""
    make_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # of a file system that became read-only
            temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error
    except KeyboardInterrupt:
        temporary.unlink(missing_ok=True)
        raise


def write_record(path: Path, record: object) -> None:
    write_bytes(path, codec.encode(record))


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold ``path`` for the life of the block. A second controller gets a UsageError that names the first.

    flock: the kernel lets go when the holder dies, however it dies; what is written in the file is for people.
    """
    make_dir(path.parent)
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text(errors="replace").strip() or "another process"
            raise UsageError(
                f"{path.parent} is in use by {holder}",
                why="two controllers would write the same files",
                fix="wait until it exits, or choose another folder with -o DIR",
            ) from None
        except OSError as error:
            raise MissingError(
                f"cannot lock {path}",
                why=error.strerror or str(error),
                fix="this file system has no locks: put the run folder on a local disk with -o DIR",
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()} since {utc_now()}\n".encode())
        yield
    finally:
        os.close(handle)


_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def records_csv(rows: Sequence[object], kind: type) -> str:
    """Write rows of one record kind in base units: unknown is an empty field, settings and lists are JSON text."""
    names = codec.field_names(kind)
    plain = (codec.to_builtins(row) for row in rows)
    return csv_text(names, ([row[name] for name in names] for row in plain))


def csv_text(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Write a header and rows of plain values: unknown is an empty field, settings and lists are JSON text.

    A text that a spreadsheet would take for a formula gets an apostrophe before it: names come from files of others.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_csv_field, names))
    writer.writerows([_csv_field(value) for value in row] for row in rows)
    return text.getvalue()


def _csv_field(value: Any) -> str | int | float:
    """Return a value as a cell: nothing for None, JSON for lists, a text that begins as a formula with a quote before it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value  # type: ignore[no-any-return]
