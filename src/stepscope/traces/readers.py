"""Processes that read traces side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

LOOK_S = 1.0


@contextmanager
def readers(count: int) -> Iterator[Executor]:
    """A pool of ``count`` processes. Left by an exception (Ctrl-C among them), it ends them in the middle of a file.

    Spawned, not forked: the caller may have threads.
    """
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(),),
    )
    before = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """In each process: Ctrl-C is the parent's to answer, whose end is this one's too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)
