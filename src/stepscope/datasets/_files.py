"""Finding, checking, hashing and fetching the files of a data set. Bad files become one DataError each."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, MissingError, UsageError

_BLOCK_BYTES = 1 << 20
_FETCH_TIMEOUT_S = 30


def damaged(path: Path, *, expected: str, actual: str, fix: str | None = None) -> DataError:
    """The error for a file that is not what it should be."""
    return DataError(
        f"{path} is not usable",
        why=f"expected {expected}; found {actual}",
        fix=fix or "replace the file with an undamaged copy",
    )


def locate(key: str, data_dir: Path | None, roles: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Find the file of each role in the first of ``data_dir``, ``data_dir/key``, ``data_dir/*/key`` that has all of them.

    roles: role -> file name patterns, best first; a pattern must match one file only.
    """
    partial: tuple[Path, dict[str, Path]] | None = None
    for folder in folders(key, data_dir):
        matches = {role: only_file(folder, patterns) for role, patterns in roles.items()}
        files_here = {role: path for role, path in matches.items() if path is not None}
        if len(files_here) == len(roles):
            return files_here
        if files_here and partial is None:
            partial = folder, files_here
    if partial is None:
        raise not_there(key, data_dir, ", ".join(patterns[0] for patterns in roles.values()))
    folder, files_here = partial
    missing = "; ".join(f"{role} ({' or '.join(roles[role])})" for role in roles if role not in files_here)
    raise DataError(
        f"{folder} lacks part of the dataset {key}",
        why=f"expected also a file for {missing}; found {', '.join(p.name for p in files_here.values())}",
        fix="complete the folder, or fetch the data set: `stepscope bench` has --download",
    )


def folders(key: str, data_dir: Path | None) -> list[Path]:
    """Existing folders where files of ``key`` may lie, in order of preference."""
    if data_dir is None:
        raise UsageError(
            f"the dataset {key} needs files",
            why="no data folder was given",
            fix="name the folder that holds them with --data-dir DIR, or use the dataset synthetic; `stepscope bench` "
            "fetches the files into DIR with --download",
        )
    if not data_dir.is_dir():
        raise DataError(
            f"the data folder {data_dir} {'is a file' if data_dir.exists() else 'does not exist'}",
            why=f"expected a folder with the files of the dataset {key}",
            fix="name the folder that holds them with --data-dir; `stepscope bench` fetches them into it with --download",
        )
    candidates = [data_dir, data_dir / key, *sorted(data_dir.glob(f"*/{key}"))]
    return [folder for folder in candidates if folder.is_dir()]


def not_there(key: str, data_dir: Path | None, wanted: str) -> DataError:
    """The error for a data folder without any file of ``key``."""
    return DataError(
        f"no files of the dataset {key} in {data_dir}",
        why=f"expected {wanted} there, in its folder {key}, or in */{key}; found none",
        fix="name the folder that holds them with --data-dir; `stepscope bench` fetches them into it with --download",
    )


def only_file(folder: Path, patterns: Sequence[str]) -> Path | None:
    """Return the file of the first pattern that fits one, or None. Raises DataError where a pattern fits several."""
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if len(matches) > 1:
            raise DataError(
                f"{folder} holds more than one {pattern}",
                why=f"expected one file; found {', '.join(m.name for m in matches)}",
                fix="keep one of them, or give a --data-dir with one",
            )
        if matches:
            return matches[0]
    return None


def read_bytes(path: Path) -> bytes:
    """The whole content, decompressed when the name ends in .gz."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken_gzip(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error


def broken_gzip(path: Path, error: Exception) -> DataError:
    """The error for a gzip stream that ends early, fails its checksum or is none."""
    problem = "it ends early" if isinstance(error, EOFError) else str(error)
    return damaged(path, expected="a complete gzip file", actual=f"{path.stat().st_size} bytes: {problem}")


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot read {path}", why=error.strerror or str(error), fix="check the file's permissions")


def content_digest(files: Mapping[str, Path], *, version: str) -> str:
    """Hash the contents by role into hex digits: equal for equal contents, wherever they lie.

    version: of the code that reads them; a change of meaning makes a new identity. A folder counts with the relative
    names of its files.
    """
    total = hashlib.sha256(version.encode())
    for role, path in sorted(files.items()):
        members = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for member in members:
            name = member.relative_to(path).as_posix() if path.is_dir() else ""
            total.update(f"\0{role}\0{name}\0{_file_digest(member)}".encode())
    return total.hexdigest()


def _file_digest(path: Path) -> str:
    try:
        stat = path.stat()
        return _hash_file(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from error


@lru_cache(maxsize=256)
def _hash_file(path: Path, size_bytes: int, mtime_ns: int) -> str:  # noqa: ARG001 - they say when to hash again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@record
class PublicFile:
    """A public file: where it lies and the MD5 that its publishers and torch's own loaders check for."""

    name: str
    url: str
    md5: str


def fetch(sources: Sequence[PublicFile], folder: Path) -> None:
    """Downloads what ``folder`` lacks; a file is there only once its checksum is right."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            target = folder / source.name
            if not target.exists():
                _fetch_one(source, target)
    except OSError as error:
        raise MissingError(
            f"cannot write to {folder}", why=error.strerror or str(error), fix="choose another folder with --data-dir"
        ) from error


def _fetch_one(source: PublicFile, target: Path) -> None:
    """Download one file. Raises DataError where its size or digest is not the published one."""
    partial = target.with_name(f".{target.name}.part")
    try:
        digest = hashlib.md5(usedforsecurity=False)
        size_bytes = 0
        with _open_url(source.url) as answer, partial.open("wb") as file:
            for block in _downloaded_blocks(answer, source.url):
                digest.update(block)
                size_bytes += len(block)
                file.write(block)
        if digest.hexdigest() != source.md5:
            raise DataError(
                f"{source.url} is not the expected file",
                why=f"expected MD5 {source.md5}; found {digest.hexdigest()} in {size_bytes} bytes",
                fix=f"try again later, or put an intact copy at {target}",
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _open_url(url: str) -> BinaryIO:
    try:
        return urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S)  # type: ignore[no-any-return]
    except OSError as error:
        raise _unreachable_error(url, error) from error


def _downloaded_blocks(answer: BinaryIO, url: str) -> Iterator[bytes]:
    """Yield what a server sends. Raises MissingError where the link breaks."""
    while True:
        try:
            block = answer.read(_BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable_error(url, error) from error
        if not block:
            return
        yield block


def _unreachable_error(url: str, error: Exception) -> MissingError:
    """Return the error of a URL that cannot be downloaded."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return MissingError(
        f"cannot download {url}",
        why=str(reason),
        fix="check the network, or download the file yourself and pass its folder with --data-dir",
    )
