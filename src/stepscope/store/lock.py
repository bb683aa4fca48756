"""One controller per run folder."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.core.errors import MissingError, UsageError
from stepscope.core.places import utc_now
from stepscope.store.writer import make_dir, writing


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
