"""Looking at foreign files before anything is known about them."""

from __future__ import annotations

import gzip
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
    """Files in a folder and below it, sorted by path; hidden files and folders are left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.is_file():
            found.append(path)
            if len(found) > MAX_FILES:
                raise DataError(
                    f"{folder} holds more than {MAX_FILES} files",
                    why="it is no folder of results",
                    fix="pass the folder of one experiment",
                )
    return tuple(found)
