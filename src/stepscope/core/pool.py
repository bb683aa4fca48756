"""Processes that work side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress

from stepscope.core.forks import begin, can_fork


def get_ready(modules: Sequence[str]) -> None:
    """Begin to import ``modules`` beside the caller, for the next ``side_by_side(prepared=True)``, and return at once.

    A server imports them once and forks every worker: modules that start threads or hold locks do not belong here. Where
    the system has no such servers, this does nothing.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(list(modules))
    with suppress(OSError), _interrupts_blocked():  # as with the pool itself: who asks for it is told
        forkserver.ensure_running()


@contextmanager
def side_by_side(count: int, *, prepared: bool = False) -> Iterator[Executor]:
    """A pool of ``count`` processes. Left by an exception (Ctrl-C among them), it ends them in the middle of their work.

    Forked from the caller only where it has no other thread, which makes them ready at once; else they start afresh.
    prepared: forked from what ``get_ready`` has imported.
    """
    served = prepared and sys.platform != "win32"
    method = "forkserver" if served else "fork" if can_fork() else "spawn"
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context(method),
        initializer=_begin_quietly if served else begin,
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


def _begin_quietly(parent: int | None) -> None:
    """Begin without stderr: an engine that ends its process writes a page of addresses there."""
    begin(parent)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C, which reaches all processes of a terminal: one that starts here must not answer it with a traceback."""
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
