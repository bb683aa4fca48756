"""The same work on many items, shared among processes that are forked from this one.

They have what this process has imported, and come at once: a pool of multiprocessing takes 40 ms of imports, two threads,
and an interpreter beside it that minds its resources.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from stepscope.core.errors import Interrupted, StepscopeError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command beside Ctrl-C: of a scheduler, of a user with ``kill``, of a terminal that goes away."""


@contextmanager
def stop_signals_raise(what: str) -> Iterator[None]:
    """Within the block a stop signal raises Interrupted(``what``), as Ctrl-C raises KeyboardInterrupt.

    Whatever is to be ended or flushed on the way out is, by ``finally`` and ``with``. Main thread only.
    """

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Interrupted(what, signum=signum)

    with signals_call(stop, STOP_SIGNALS):
        yield


@contextmanager
def signals_call(handler: Callable[[int, FrameType | None], None], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Within the block each of these signals calls ``handler``. Main thread only."""
    # What is ignored stays ignored: nohup is how a user says that SIGHUP means nothing.
    caught = [s for s in signals if signal.getsignal(s) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in caught}
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


T = TypeVar("T")
R = TypeVar("R")

LOOK_S = 1.0
_NUMBER = 8
"""Bytes of a ticket, and of the length before each result."""


class ProcessKilledError(Exception):
    """A process was ended by a signal in the middle of its work."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave(code: int) -> NoReturn:
    """Exit without taking the process apart object by object: 20 ms of numpy's, a second of torch's, seen by nobody."""
    atexit._run_exitfuncs()  # a data loader's workers end here
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by whoever started this process
        stream.flush()
    os._exit(code)


def can_fork() -> bool:
    """Whether nothing else runs in this process, a library's threads included; False where the system does not tell."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and len(list(Path("/proc/self/task").iterdir())) == 1


def map_forked(
    work: Callable[[T], R],
    items: Sequence[T],
    count: int,
    *,
    done: Callable[[T], None],
    meanwhile: Callable[[], None] | None = None,
) -> list[R | StepscopeError]:
    """Return ``work`` of every item, or the StepscopeError that it raised; ``count`` processes take one item after another.

    Only where ``can_fork``. ``done`` is told each item that is finished; ``meanwhile`` is called here once while the others
    work. Left by an exception (Ctrl-C among them), it ends them in the middle. Raises ProcessKilledError.
    """
    tickets = os.memfd_create("items")  # its position is one for all processes: each read takes the next item
    os.write(tickets, b"".join(place.to_bytes(_NUMBER, "little") for place in range(len(items))))
    os.lseek(tickets, 0, os.SEEK_SET)
    results: dict[int, R | StepscopeError] = {}
    running: dict[int, int] = {}
    try:
        with _interrupts_blocked():
            for _ in range(count):
                _fork_worker(running, tickets, work, items)
        if meanwhile is not None:
            meanwhile()
        while running:
            for source in _ready_pipes(running):
                text = _received_result(source)
                if text is not None:
                    place, results[place] = pickle.loads(text)
                    done(items[place])
                    continue
                os.close(source)
                _, status = os.waitpid(running.pop(source), 0)
                if os.WIFSIGNALED(status):
                    raise ProcessKilledError
                if status:
                    raise RuntimeError("a process has failed; what it printed says why")
    finally:
        os.close(tickets)
        for pid in running.values():
            os.kill(pid, signal.SIGTERM)
        for source, pid in running.items():
            os.close(source)
            os.waitpid(pid, 0)
    return [results[place] for place in range(len(items))]


def begin(parent: int | None) -> None:
    """Leave Ctrl-C to the parent, and end when it ends; each process calls this first. None: a server's child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in STOP_SIGNALS:  # a forked one has the caller's handlers
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, args=(parent or os.getppid(),), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:  # a server ends when the caller does
        time.sleep(LOOK_S)
    os._exit(1)


def _fork_worker(running: dict[int, int], tickets: int, work: Callable[[T], R], items: Sequence[T]) -> None:
    """Start one more process and enter it in ``running`` under the end of the pipe that its results come through."""
    parent = os.getpid()
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        _serve_work(parent, tickets, sink, work, items)
    running[source] = pid
    os.close(sink)  # before the next fork: the pipe ends with this process alone


def _serve_work(parent: int, tickets: int, sink: int, work: Callable[[T], R], items: Sequence[T]) -> NoReturn:
    """Work in the new process and exit, whatever happens: nothing of the caller's goes on in it."""
    code = 1
    try:
        begin(parent)
        while ticket := _next_ticket(tickets):
            place = int.from_bytes(ticket, "little")
            outcome: R | StepscopeError
            try:
                outcome = work(items[place])
            except StepscopeError as error:
                outcome = error
            _send_result(sink, pickle.dumps((place, outcome), pickle.HIGHEST_PROTOCOL))
        code = 0
    except BrokenPipeError:  # the caller has gone
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _next_ticket(tickets: int) -> bytes:
    """Return the next item's ticket; empty where none is left. The kernel does not read and move on in one for such a file:
    two processes took one item now and then."""
    import fcntl

    fcntl.lockf(tickets, fcntl.LOCK_EX)
    try:
        return os.read(tickets, _NUMBER)
    finally:
        fcntl.lockf(tickets, fcntl.LOCK_UN)


def _send_result(sink: int, text: bytes) -> None:
    left = memoryview(len(text).to_bytes(_NUMBER, "little") + text)
    while left:
        left = left[os.write(sink, left) :]


def _received_result(source: int) -> bytes | None:
    """Return the next result, or None where the process has ended."""
    length = _read_bytes(source, _NUMBER)
    return None if length is None else _read_bytes(source, int.from_bytes(length, "little"))


def _read_bytes(source: int, size: int) -> bytes | None:
    """Read so many bytes; None where the pipe ends before."""
    content = bytearray()
    while len(content) < size:
        more = os.read(source, size - len(content))
        if not more:
            return None
        content += more
    return bytes(content)


def _ready_pipes(running: dict[int, Any]) -> list[int]:
    """The pipes that have something to read, or an end."""
    poll = select.poll()
    for source in running:
        poll.register(source, select.POLLIN)
    return [source for source, _ in poll.poll()]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C, which reaches all processes of a terminal: one that starts here must not answer it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
