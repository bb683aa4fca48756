"""Traces behind URLs: listed where the protocol can list, read where they lie. fsspec speaks the protocols and finds the
credentials; nothing is kept on this machine.
"""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, TypeVar

from stepscope.core.errors import DataError, MissingError, StepscopeError

T = TypeVar("T")

_TEXT, _DATABASES = (".json", ".json.gz", ".json.zst"), (".sqlite", ".nsys-rep", ".qdrep")
BLOCK_BYTES = 4 << 20
"""Asked for at a time: some ten requests a second at the speed at which a trace is decoded."""

_HTTP = ("http", "https")
_REMEMBERED = 64
"""Bytes at the start to which a reader may go back: what it tells the packing by."""


class RemoteFile:
    """One file behind a URL, with what is used of a Path. listed: found in a folder, not named itself."""

    def __init__(self, url: str, *, size: int | None = None, listed: bool = False) -> None:
        self.url, self.listed, self._size = url, listed, size
        path = PurePosixPath(url.partition("?")[0])
        self.name, self.suffix, self.parent = path.name, path.suffix, path.parent

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def is_file(self) -> bool:
        """Return False: it is of no file system of this machine, and is not read in parts."""
        return False

    def stat(self) -> SimpleNamespace:
        """``st_size``, 0 where the server does not tell."""
        if self._size is None:
            fs, path = _file_system_and_path(self.url)
            self._size = _library_answer(self.url, lambda: fs.info(path)).get("size") or 0
        return SimpleNamespace(st_size=self._size)

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """Open its bytes from the start. Raises DataError, MissingError."""
        fs, path = _file_system_and_path(self.url)
        with _library_answer(self.url, lambda: fs.open(path, mode, block_size=BLOCK_BYTES)) as file:
            yield _Stream(self.url, file)  # type: ignore[misc] # what ByteSource uses of a file


class _Stream:
    """Reads once from the start; goes back as far as its first bytes, which some servers do not send a second time."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file
        self._first, self._at = b"", 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; the first ones are kept, so that the file can be read again from its begin."""
        if self._at < len(self._first):
            chunk = self._first[self._at :]
        else:
            chunk = _library_answer(self._url, lambda: self._file.read(size))
            if self._at < _REMEMBERED:
                self._first += chunk
        if size >= 0:
            chunk = chunk[:size]
        self._at += len(chunk)
        return chunk

    def seek(self, place: int) -> int:
        if place > len(self._first):
            raise OSError(f"{self._url} is read from its start")
        self._at = place
        return place

    def tell(self) -> int:
        return self._at


def files_at(url: str, rank_folder: re.Pattern[str]) -> list[RemoteFile]:
    """Return the file itself, the trace files of a folder, or those that a glob matches. rank_folder: what a folder of one
    rank is called. Raises DataError, MissingError."""
    fs, path = _file_system_and_path(url)
    if url.endswith(_DATABASES):
        raise DataError(
            f"{url}: cannot be read in place", why="SQLite needs a file of this machine", fix="copy it here"
        )
    if glob.has_magic(path.partition("?")[0]) and "?" not in path:
        matches = _library_answer(url, lambda: fs.glob(path, detail=True))
        return _listed_files(fs, list(matches.values()))
    web = url.startswith(_HTTP)
    if web and url.partition("?")[0].endswith(_TEXT):
        return [RemoteFile(url, size=_library_answer(url, lambda: fs.info(path)).get("size"))]
    if not web:
        about = _library_answer(url, lambda: fs.info(path))
        if about["type"] != "directory":
            return [RemoteFile(url, size=about.get("size"))]
    return _remote_trace_files(fs, url, path, rank_folder)


def _remote_trace_files(fs: Any, url: str, path: str, rank_folder: re.Pattern[str]) -> list[RemoteFile]:
    """Return a folder's trace files; where it has none, those of its folder ``trace``, or of its folders of ranks."""
    entries = _library_answer(url, lambda: fs.ls(path, detail=True))
    files = _listed_files(fs, entries)
    if files:
        return files
    folders = {PurePosixPath(entry["name"]).name: entry["name"] for entry in entries if entry["type"] == "directory"}
    inner = (
        [folders["trace"]] if "trace" in folders else [n for name, n in folders.items() if rank_folder.fullmatch(name)]
    )
    return [file for name in inner for file in _remote_trace_files(fs, fs.unstrip_protocol(name), name, rank_folder)]


def _listed_files(fs: Any, entries: list[dict[str, Any]]) -> list[RemoteFile]:
    return [
        RemoteFile(fs.unstrip_protocol(entry["name"]), size=entry.get("size"), listed=True)
        for entry in entries
        if entry["type"] == "file" and entry["name"].endswith(_TEXT)
    ]


def _file_system_and_path(url: str) -> tuple[Any, str]:
    """fsspec's file system for the URL, and its path there."""
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        from stepscope.core.installing import install_extra

        raise MissingError(
            f"{url}: reading URLs needs fsspec", why="it is not installed", fix=install_extra("remote")
        ) from error
    scheme = url.partition(":")[0]
    try:
        fs, path = _library_answer(url, lambda: url_to_fs(url))
    except ImportError as error:
        needs = known_implementations.get(scheme, {}).get("err", str(error))
        raise MissingError(
            f"{url}: fsspec cannot open {scheme}:// here", why="the package that speaks it is not installed", fix=needs
        ) from error
    except ValueError as error:
        raise DataError(
            f"{url}: no such protocol", why=str(error), fix="fsspec knows s3, gs, hf, ssh, https and others"
        ) from error
    return fs, path


def _library_answer(url: str, ask: Callable[[], T]) -> T:
    """Return what the library answers, and raise its failures as ours."""
    try:
        return ask()
    except _failure_types() as error:
        raise _explained_error(url, error) from error


def _failure_types() -> tuple[type[Exception], ...]:
    """List what libraries loaded so far raise where a server refuses or is not reached: not all of it is an OSError."""
    of = {
        "aiohttp": ("ClientError",),
        "botocore.exceptions": ("BotoCoreError", "ClientError"),
        "google.auth.exceptions": ("GoogleAuthError",),
        "paramiko": ("SSHException",),
    }
    failures: list[type[Exception]] = [OSError, TimeoutError]
    for name, classes in of.items():
        if (module := sys.modules.get(name)) is not None:
            failures += [getattr(module, class_name) for class_name in classes]
    return tuple(failures)


def _explained_error(url: str, error: Exception) -> StepscopeError:
    """Return our error for a library's: not there, access denied, or not readable."""
    status = _http_status(error)
    if status == 404 or (isinstance(error, FileNotFoundError) and status is None):
        return DataError(f"{url}: no such file or folder", why="the server has nothing there", fix="check the URL")
    if isinstance(error, PermissionError) or status in (401, 403):
        status_text = f" ({status})" if status else ""
        return DataError(
            f"{url}: access denied",
            why=f"the server refuses it to these credentials{status_text}",
            fix="log in as the library that opens it expects: environment variables or its own file of credentials",
        )
    return DataError(
        f"{url}: cannot be read",
        why=getattr(error, "strerror", None) or str(error) or type(error).__name__,
        fix="check the URL and the network",
    )


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status that the error has, or the one that it was raised from: fsspec says "not found" of a page that
    it may not see."""
    while error is not None:
        for name in ("status", "code"):
            if isinstance(status := getattr(error, name, None), int):
                return status
        error = error.__cause__ or error.__context__
    return None
