"""Looking at foreign files before anything is known about them."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from stepscope.core.errors import DataError

MAX_FILES = 100_000


def head_of(path: Path, size: int) -> bytes:
    """Up to ``size`` bytes of the file's text; empty where it cannot be read (the importer asked to read it says why)."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path, "rb") as packed:
                return packed.read(size)
    except (OSError, EOFError, zlib.error):
        return b""
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
                why="it is no folder of results",
                fix="pass the folder of one experiment",
            )
    return tuple(path for path in sorted(found) if _is_file(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
