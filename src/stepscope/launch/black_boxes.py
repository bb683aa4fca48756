"""What processes of this host leave that end without a word: hook/stepscope_hook/black_box.py says what is in it."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

from stepscope.results.ends.stacks import LeftState, Standing, signalled_stack

NAME = "/memfd:stepscope"
STATE = 64
_WORDS = struct.Struct("<QQQ40s")
AT_MOST = 1 << 18
"""Bytes of stacks that are read."""


def open_box(pid: int, number: int) -> int | None:
    """Return a file descriptor of the black box of a running process, or None where it has none or may not be read."""
    path = Path(f"/proc/{pid}/fd/{number}")
    with suppress(OSError):
        if str(path.readlink()).startswith(NAME):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def read_box(descriptor: int) -> LeftState | None:
    """Return the state in the box, or None where nothing has been written yet."""
    try:
        data = os.pread(descriptor, STATE + AT_MOST, 0)
    except OSError:
        return None
    if len(data) < STATE:
        return None
    steps, seen_ns, ident, part = _WORDS.unpack(data[:STATE])
    text = part.rstrip(b"\0").decode(errors="replace") or None
    frames = signalled_stack(data[STATE:].decode(errors="replace"), ident)
    if not steps and not frames and text is None:
        return None
    return LeftState(steps=steps, seen_ns=seen_ns, standing=Standing(part=text, steps=steps, frames=frames))
