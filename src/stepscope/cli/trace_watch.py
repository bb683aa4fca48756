"""What is said on stderr while traces are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.cli.console import err
from stepscope.core.units import format_bytes
from stepscope.core.words import counted

PROGRESS_AFTER_S = 2.0
TOLD_FROM_S = 3.0
"""Less than this to wait for needs no telling."""
LEARN_S, LEARN_SHARE = 0.7, 0.08
"""How long, and for what share of the bytes, the reading is watched before it is said how long the rest will take."""


class Watch:
    """On stderr, where reading takes long: how much longer, as its own beginning tells, and which ranks are done."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._sizes: dict[Path, int] = {}
        self._taken: dict[Path, int] = {}
        self._done = 0
        self._said = False

    def started(self, files: Sequence[Path]) -> None:
        self._sizes = {file: file.stat().st_size for file in files}

    def advanced(self, path: Path, taken: int) -> None:
        self._taken[path] = taken
        elapsed = time.monotonic() - self._start
        whole, read = sum(self._sizes.values()), sum(self._taken.values())
        if self._said or elapsed < LEARN_S or read < LEARN_SHARE * whole:
            return
        self._said = True
        left = elapsed * (whole / max(read, 1) - 1)
        if left >= TOLD_FROM_S:
            what = f"reading {counted(len(self._sizes), 'trace')}, {format_bytes(whole)}"
            err().print(f"{what}: about {left:.0f} s more", style="dim")

    def done(self, path: Path) -> None:
        self._done += 1
        self.advanced(path, self._sizes[path])
        if time.monotonic() - self._start > PROGRESS_AFTER_S and self._done < len(self._sizes):
            err().print(f"{self._done} of {len(self._sizes)} ranks read ({path.name})", style="dim")

    def end(self) -> None:
        if time.monotonic() - self._start > TOLD_FROM_S:
            err().print(f"read in {time.monotonic() - self._start:.1f} s", style="dim")
