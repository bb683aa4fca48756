"""A rank that is told to stop leaves, even from inside a library call that does not return to the interpreter.

Python runs signal handlers between two bytecodes of the main thread: a rank that waits inside gloo, NCCL, CUDA or the
rendezvous store would sit out torchrun's 30 s until SIGKILL, and everybody with it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0
"""For the main thread's own way out, which flushes what was measured."""


def leave_when_told(leave: Callable[[], None], *, grace_s: float = GRACE_S) -> None:
    """Call ``leave``, which ends the process, when it still runs ``grace_s`` after SIGTERM. From the main thread only."""
    told, teller = socket.socketpair()
    teller.setblocking(False)
    signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
    # A forked data worker shares the socket: a signal for it is no signal for this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def wait() -> None:
        while numbers := told.recv(64):
            if signal.SIGTERM in numbers:
                time.sleep(grace_s)
                leave()
        teller.close()

    threading.Thread(target=wait, name="stepscope-way-out", daemon=True).start()
