"""A rank that is told to stop leaves, even from inside a library call that does not return to the interpreter.

Python runs signal handlers between two bytecodes of the main thread: a rank that waits inside gloo, NCCL, CUDA or the
rendezvous store would sit out torchrun's 30 s until SIGKILL, and everybody with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0
"""For the main thread's own way out, which flushes what was measured."""

_SIG_DFL, _SIG_IGN = 0, 1
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_keep: list[object] = []


def leave_when_told(
    leave: Callable[[], None], *, at_once: Callable[[], None] = lambda: None, grace_s: float = GRACE_S
) -> None:
    """Call ``at_once`` on SIGTERM, and ``leave``, which ends the process, when it still runs ``grace_s`` later.

    From the main thread only; both are called in another one.
    """
    told, teller = socket.socketpair()
    teller.setblocking(False)
    signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
    # A forked data worker shares the socket: a signal for it is no signal for this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def wait() -> None:
        while numbers := told.recv(64):
            if signal.SIGTERM in numbers:
                at_once()
                time.sleep(grace_s)
                leave()
        teller.close()

    threading.Thread(target=wait, name="stepscope-way-out", daemon=True).start()


def on_abort(leave: Callable[[], None]) -> None:
    """Call ``leave`` when a library aborts this process, before it dies of it. Linux and macOS.

    gloo does so, in a thread of its own, when a message is larger than the tensor it is meant for; NCCL's watchdog when
    a collective timed out. Python's own handlers are too late for both: abort() does not return to the interpreter.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    owner = os.getpid()

    def handle(signum: int) -> None:
        libc.signal(signum, previous or _SIG_DFL)
        if os.getpid() == owner:  # not in a forked data worker
            leave()
        if previous not in (None, _SIG_DFL, _SIG_IGN):
            _HANDLER(previous)(signum)  # faulthandler's, say

    handler = _HANDLER(handle)
    _keep.append(handler)  # C holds no reference
    previous = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
