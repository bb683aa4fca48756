"""Processes that do not outlive whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int, *, parent: int | None = None) -> None:
    """Linux: this process gets ``signum`` when the one that started it ends; elsewhere nothing.

    parent: its process id, where it may have ended already: then ``signum`` comes at once. Raises OSError where the kernel
    refuses.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if parent is not None and os.getppid() != parent:
        signal.raise_signal(signum)
