"""The lines of NCCL's debug log, whatever else was written into the same file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stepscope.store.files import reading
from stepscope.store.importers._log_lines import without_prefix

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 14
"""Of a longer line the end is looked at: NCCL's own are shorter, but may follow a progress bar without an end."""

_HEADER = re.compile(
    rb"(?<![\w.\-])([\w.\-]{1,255}):(\d{1,9}):(\d{1,9}) \[(-?\d{1,9})\] (?:(\S+:\d+) (?:\(\S*\) )?)?NCCL (INFO|WARN) ?"
)
_VERSION = re.compile(rb"(?<!, )\b[NR]CCL version\s*:?\s*(\d\S*)(?:\s+\S+:\S+)?\s*$")


class ParsedLine(NamedTuple):
    """One line of NCCL's. glued: it began in the middle of another line, so that its host may have letters too many."""

    host: str
    pid: int
    tid: int
    device: int
    place: str  # file:line of a warning, empty otherwise
    warning: bool
    text: str
    glued: bool


class Lines:
    """The lines of one file, read once from beginning to end in constant memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Every whole line; an unfinished last one is left out. Raises DataError for a file that cannot be read."""
        rest = b""
        self.truncated = True  # a .gz may be cut off
        with reading(self._path) as file:
            while block := file.read1(BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                self.count += len(lines)
                yield from lines
                rest = rest[-BLOCK_BYTES:]
            self.truncated = bool(rest)


@lru_cache(maxsize=4096)  # a job makes the same calls again and again
def parse_line(line: bytes) -> tuple[ParsedLine | None, int]:
    """What NCCL says in a line, and how many of its lines ended there because another one ran into them.

    Of those nothing is taken: where one line begins inside another, the other's rest stands anywhere.
    """
    found = list(_HEADER.finditer(line))
    if not found:
        return None, 0
    last = found[-1]
    host, pid, tid, device, place, level = last.groups()
    parsed = ParsedLine(
        host=host.decode(),
        pid=int(pid),
        tid=int(tid),
        device=int(device),
        place=(place or b"").decode(errors="replace"),
        warning=level == b"WARN",
        text=line[last.end() :].decode(errors="replace").rstrip(),
        glued=len(found) > 1 or (last.start() > 0 and _HEADER.match(without_prefix(line)[1].lstrip()) is None),
    )
    return parsed, len(found) - 1


def parse_version(line: bytes) -> str | None:
    """The version where NCCL states it on a line of its own, without saying who speaks."""
    found = _VERSION.search(line)
    return found[1].decode(errors="replace") if found else None
