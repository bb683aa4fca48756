"""Processes that have imported torch before they start: a server imports it once, each process of a test is its fork.

``python torch_forks.py FD FOLDER`` is the server. It imports torch and the rank half, then forks at every request. The
fork gets the arguments, environment, folder and descriptors that ``subprocess.Popen`` was asked for, and runs the module
or script as ``python`` would. It becomes a child of the process that asked, so that waiting, signals, process groups and
deaths of parents are those of a process that was started the usual way.

Before anything runs in a fork, it forks a server of its own. Through it go the processes that it starts in turn:
``stepscope bench`` starts torchrun, torchrun starts ranks, and none of them imports torch again.

FOLDER is for what the tests of one process share. The server removes it as it ends, which it does however that process
ended: a killed one runs no code of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import stepscope

CHECKOUT = str(Path(stepscope.__file__).parents[1])
"""Where the tests import stepscope from. A server and its forks do so too, whichever checkout is installed."""

MODULES = ("stepscope.cli", "stepscope.rank", "torch.distributed.run")
"""What runs in a fork when a fork starts it; of everything else, only the scripts that a hooked torchrun starts do."""

PRELOADED = ("torch", "torch.distributed.run", "torch._dynamo", "pytest")
"""Besides all modules of stepscope."""

BARE = "STEPSCOPE_TESTS_BARE_SERVER"
"""Where the environment has it, a server imports nothing before it forks: for the test of its end."""

_PR_SET_CHILD_SUBREAPER = 36
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_GIVEN = (
    "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell",
    *_PIPES, "restore_signals", "gid", "gids", "uid", "umask", "start_new_session",
)  # fmt: skip
"""What ``Popen`` gives its ``_execute_child``, in order (Python 3.11 to 3.14)."""

_ROOMY = {"OMP_NUM_THREADS": "1"}
"""What a server runs with: what malloc holds lies in huge pages, which makes a fork take 20 ms of processor time, not 30."""

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """descriptors: the numbers that the descriptors sent along get in the new process, in order."""

    parent: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    descriptors: tuple[int, ...]
    new_session: bool
    before: Any


class Server:
    """A connection to a process that forks on request. Closing it ends that process, not its forks.

    folder: a temporary one, there as long as the process; None for the server of a fork.
    """

    def __init__(self, connection: socket.socket, pid: int | None = None, folder: Path | None = None) -> None:
        self.pid = pid
        self.folder = folder
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def start(cls) -> Server:
        ours, theirs = socket.socketpair()
        folder = Path(tempfile.mkdtemp(prefix="stepscope-facts-"))
        line = [sys.executable, __file__, str(theirs.fileno()), str(folder)]
        environ = {**os.environ, **_ROOMY, "PYTHONPATH": CHECKOUT}  # and no folder with a sitecustomize
        with theirs:
            process = subprocess.Popen(
                line, pass_fds=[theirs.fileno()], env=environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
        server = cls(ours, process.pid, folder)
        server._process = process
        return server

    _process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        self._connection.close()
        if self._process is not None:
            self._process.wait(timeout=10)

    def spawn(self, request: _Request, descriptors: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        with self._lock:
            _adopt_orphans(True)
            try:
                _send(self._connection, request, descriptors)
                (pid,) = struct.unpack("!i", _exactly(self._connection, 4))
            finally:
                _adopt_orphans(False)
        return int(pid)


@functools.cache
def shared_server() -> Server:
    """The one of this process's tests, started at the first use; it ends with this process."""
    server = Server.start()
    atexit.register(server.close)
    return server


class ForkedPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` whose process is a fork of a server's. No shell, no other user, no umask."""

    def __init__(self, arguments: Sequence[str], *, server: Server, **settings: Any) -> None:
        self._server = server
        super().__init__(arguments, **settings)

    def _execute_child(self, *arguments: Any) -> None:
        _execute_in_fork(self, self._server, *arguments)


def _execute_in_fork(popen: Any, server: Server, *arguments: Any) -> None:
    """``Popen._execute_child`` by a server."""
    given = dict(zip(_GIVEN, arguments, strict=False))
    pipes = given["p2cread"], given["c2pwrite"], given["errwrite"]
    streams = [fd if fd != -1 else number for number, fd in enumerate(pipes)]
    request = _Request(
        parent=os.getpid(),
        argv=tuple(os.fspath(arg) for arg in given["args"]),
        environ=dict(os.environ if given["env"] is None else given["env"]),
        folder=os.fspath(given["cwd"] or Path.cwd()),
        descriptors=(0, 1, 2, *given["pass_fds"]),
        new_session=given["start_new_session"],
        before=given["preexec_fn"],
    )
    popen.pid = server.spawn(request, [*streams, *given["pass_fds"]])
    popen._child_created = True
    popen._close_pipe_fds(*(given[name] for name in _PIPES))


def _send(connection: socket.socket, request: _Request, descriptors: Sequence[int]) -> None:
    data = pickle.dumps({field.name: getattr(request, field.name) for field in fields(request)})
    socket.send_fds(connection, [struct.pack("!i", len(data))], list(descriptors))
    connection.sendall(data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the server of forks has ended")
        data += part
    return data


def _adopt_orphans(on: bool) -> None:
    """Whether processes below this one that lose their parent become its children."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _serve(connection: socket.socket) -> tuple[_Request, list[int]] | None:
    """Fork at every request. Returns in a fork, with what it is to do and its descriptors; None at the end."""
    while True:
        try:
            head, descriptors, _, _ = socket.recv_fds(connection, 4, 16)
            if not head:
                return None
            request = _Request(**pickle.loads(_exactly(connection, struct.unpack("!i", head)[0])))
        except (EOFError, ConnectionResetError):
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            # The fork outlives this process, which makes it an orphan: the asking process adopts it.
            pid = os.fork()
            if pid == 0:
                for descriptor in (reading, writing, connection.detach()):
                    os.close(descriptor)
                return request, descriptors
            os.write(writing, struct.pack("!i", pid))
            os._exit(0)
        os.close(writing)
        os.waitpid(between, 0)
        answer = os.read(reading, 4)
        for descriptor in (reading, *descriptors):
            os.close(descriptor)
        connection.sendall(answer)


def _become(request: _Request, descriptors: Sequence[int]) -> None:
    """Take on what a new process would have been given."""
    while os.getppid() != request.parent:
        if not Path(f"/proc/{request.parent}").exists():
            os._exit(1)  # it was killed before it adopted this one
        time.sleep(0.001)
    _take_descriptors(request.descriptors, descriptors)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.new_session:
        os.setsid()
    if request.before is not None:
        request.before()
    tempfile.tempdir = None  # it is looked up once, and was for the server
    os.chdir(request.folder)


def _take_descriptors(numbers: Sequence[int], descriptors: Sequence[int]) -> None:
    high = [os.dup2(fd, 500 + index) for index, fd in enumerate(descriptors)]
    for fd in descriptors:
        os.close(fd)
    for number, fd in zip(numbers, high, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1, "strict", "PYTHONUNBUFFERED" in os.environ)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", True)  # type: ignore[misc]


def _writer(descriptor: int, errors: str, by_line: bool) -> io.TextIOWrapper:
    binary = open(descriptor, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=by_line or binary.isatty())


def _serve_own_children(descriptors: Sequence[int]) -> None:
    """A server for the processes that this one starts, forked while this one is as good as new."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        for descriptor in descriptors:
            os.close(descriptor)
        found = _serve(theirs)
        if found is None:
            os._exit(0)
        _run(*found)
    theirs.close()
    server, real = Server(ours), subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(popen: Any, args: Any, *more: Any) -> None:
        if _is_ours(args):
            _execute_in_fork(popen, server, args, *more)
        else:
            real(popen, args, *more)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _is_ours(args: Any) -> bool:
    """Whether a command line is ``python [-u] -m`` with a module that forks are for, or a rank of a hooked torchrun."""
    words = [args] if isinstance(args, str) else [os.fspath(arg) for arg in args]
    rest = [word for word in words[1:3] if word != "-u"]
    if words[0] != sys.executable or not rest:
        return False
    if rest[0] == "-m":
        return set(words[2:4]) & set(MODULES) != set()
    return words[1] == "-u" and rest[0].endswith(".py") and "STEPSCOPE_HOOK" in os.environ


ALONE = ("diagnose", "hardware", "plan", "predict", "report", "schema", "trace")
"""Commands that start no ranks."""


def _starts_nothing(argv: Sequence[str]) -> bool:
    """Ranks of ``stepscope`` and of the pools, and commands without any, need no server of their own."""
    alone = list(argv[1:3]) == ["-m", "stepscope.cli"] and argv[3:4] and argv[3] in ALONE
    return bool(alone) or "stepscope.rank" in argv[1:4] or argv[1].endswith("dist/_pool.py")


def _run(request: _Request, descriptors: Sequence[int]) -> NoReturn:
    """Run the command line of ``request`` as ``python`` does, and end."""
    if not _starts_nothing(request.argv):
        _serve_own_children(descriptors)
    _become(request, descriptors)
    real = os.execve

    def turn_into(path: Any, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        if not _is_ours(argv):
            real(path, argv, environ)
        _end_with(argv, environ)

    os.execve = turn_into  # type: ignore[assignment]
    _end_with(request.argv, request.environ)


def _end_with(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    environ = dict(environ)  # it may be os.environ
    os.environ.clear()
    os.environ.update(environ)
    words = [word for word in argv[1:] if word != "-u"] if argv[1] == "-u" else list(argv[1:])
    places = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    importlib.invalidate_caches()
    code = 0
    for place in places:  # as Python does before anything else: this is how a job gets the hook
        if Path(place, "sitecustomize.py").exists():
            runpy.run_path(str(Path(place, "sitecustomize.py")))
            break
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            sys.path[:0] = [str(Path.cwd()), *places]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            sys.path[:0] = [str(Path(words[0]).parent), *places]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = _code(end)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - as an interpreter ends
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    os._exit(code)  # taking torch apart takes a second


def _code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _all_of_stepscope() -> list[str]:
    found = pkgutil.walk_packages(importlib.import_module("stepscope").__path__, "stepscope.")
    return [each.name for each in found if not each.name.endswith("__main__")]


def main() -> None:
    gc.disable()  # a quarter of the imports' time, and none of what they make is garbage
    for module in () if BARE in os.environ else (*PRELOADED, *_all_of_stepscope()):
        importlib.import_module(module)
    # torchrun looks at its stack again and again, and inspect looks through all modules for a file that is in none of them.
    inspect.stack()
    inspect.modulesbyfile.update({"<frozen runpy>": "runpy", __file__: "__main__"})  # type: ignore[attr-defined]
    for each, record in weakref.finalize._registry.items():  # type: ignore[attr-defined]
        if record.func.__module__ == "torch.library":
            each.atexit = False  # taking operators apart as a fork ends costs more than many a fork does
    gc.collect()
    gc.freeze()  # or the collector of each fork would touch, and so copy, all of it
    gc.enable()
    del sys.path[0]  # this file's folder
    connection, server = socket.socket(fileno=int(sys.argv[1])), os.getpid()
    try:
        found = _serve(connection)
    finally:
        if os.getpid() == server:
            shutil.rmtree(sys.argv[2], ignore_errors=True)
    if found is not None:
        _run(*found)


if __name__ == "__main__":
    main()
