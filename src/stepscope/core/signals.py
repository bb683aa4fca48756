"""Being told to stop, as an exception."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stepscope.core.errors import Interrupted

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command beside Ctrl-C: a scheduler or a user with ``kill``, a terminal that goes away."""


@contextmanager
def stop_signals_raise(what: str) -> Iterator[None]:
    """Within the block a stop signal raises Interrupted(``what``), as Ctrl-C raises KeyboardInterrupt.

    Whatever is to be ended or flushed on the way out is, by ``finally`` and ``with``. Main thread only.
    """

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Interrupted(what, signum=signum)

    # What is ignored stays ignored: nohup is how a user says that SIGHUP means nothing.
    caught = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop) for signum in caught}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
