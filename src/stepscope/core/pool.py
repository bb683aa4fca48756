"""Processes that work side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 1.0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_ready(modules: Sequence[str]) -> None:
    """Begin to import ``modules`` beside the caller, for the next ``side_by_side(prepared=True)``; at once back.

    A server imports them once and forks every worker: modules that start threads or hold locks do not belong here. Where
    the system has no such servers, nothing.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(list(modules))
    with _interrupts_blocked():
        forkserver.ensure_running()


@contextmanager
def side_by_side(count: int, *, prepared: bool = False) -> Iterator[Executor]:
    """A pool of ``count`` processes. Left by an exception (Ctrl-C among them), it ends them in the middle of their work.

    Forked from the caller only where it has no other thread, which makes them ready at once; else they start afresh.
    prepared: forked from what ``get_ready`` has imported.
    """
    served = prepared and sys.platform != "win32"
    method = "forkserver" if served else "fork" if _single_threaded() else "spawn"
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context(method),
        initializer=_begin,
        initargs=(None if served else os.getpid(),),
    )
    before = set(multiprocessing.active_children())
    with _interrupts_blocked():
        pool.submit(int)  # with the first work all processes start
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _single_threaded() -> bool:
    """Whether nothing else runs in this process, a library's threads included; False where the system does not tell."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; one that starts here must not answer it with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it unblocks Ctrl-C, whatever was before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int | None) -> None:
    """In each process: Ctrl-C is the parent's to answer, whose end is this one's too. None: a server's child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked one has the caller's handlers
    threading.Thread(target=_watch, args=(parent or os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:  # a server ends when the caller does
        time.sleep(LOOK_S)
    os._exit(1)
