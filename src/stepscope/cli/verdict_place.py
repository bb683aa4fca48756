"""Where the verdict on a job goes: the job's own output is not ours to mix into."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from stepscope.cli.console import out
from stepscope.core.errors import UsageError
from stepscope.store.writer import writing


def checked_place(given: str | None) -> str:
    """``stdout``, ``stderr`` or a file. None: stdout, or stderr where that alone is a terminal. Raises UsageError."""
    if given is None:
        return "stderr" if sys.stderr.isatty() and not sys.stdout.isatty() else "stdout"
    if given not in ("stdout", "stderr"):
        path = Path(given)
        if path.is_dir() or not path.absolute().parent.is_dir():
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
            raise UsageError(
                f"--verdict {given}: this file cannot be written", why=why, fix="name a file, stdout or stderr"
            )
    return given


@contextmanager
def results_at(place: str) -> Iterator[None]:
    """Within the block results go there in place of stdout; a file holds those of the last block. Raises WriteError."""
    if place == "stdout":
        yield
        return
    out.cache_clear()  # it knows the width and the colours of one stream
    try:
        if place == "stderr":
            with redirect_stdout(sys.stderr):
                yield
            return
        with writing(Path(place)), Path(place).open("w", encoding="utf-8") as file, redirect_stdout(file):
            yield
    finally:
        out.cache_clear()
