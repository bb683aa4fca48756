"""Writing that never leaves half a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from stepscope.core.errors import MissingError
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
    """The error a user sees when ``path`` cannot be written."""
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
    """``path`` as an existing folder."""
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
        self._write(b"".join(codec.encode_line(each) for each in records))

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
    """The first part of ``path`` that exists and is something else than a folder."""
    return next(p for p in (*reversed(path.parents), path) if p.exists() and not p.is_dir())


def write_bytes(path: Path, data: bytes) -> None:
    """Whole file or nothing: a temporary file beside it, then a rename."""
    make_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error
    except KeyboardInterrupt:
        temporary.unlink(missing_ok=True)
        raise


def write_record(path: Path, record: object) -> None:
    write_bytes(path, codec.encode(record))
