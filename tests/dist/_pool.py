"""Persistent gloo ranks for tests: start once, run many functions, report whichever rank fails, hangs or dies.

``python _pool.py FD RANK WORLD STORE`` is a rank; :class:`Pool` starts and feeds them. A rank gets the
module, the name and the arguments of a function, calls ``function(mesh, *args)`` and sends back what it returns.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

GRACE_S = 1.0
"""How long the other ranks may still report after the first failure: the cause is often not the first one heard."""

START_TIMEOUT_S = 100.0


class RankFailed(AssertionError):  # noqa: N818 - reads as what happened
    """A rank raised, died or never answered. The message holds what every failing rank said."""


class Pool:
    """``world_size`` ranks in one process group. Broken by any failure, and then to be replaced."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.broken = False
        self._folder = tempfile.TemporaryDirectory(prefix="stepscope-ranks-")
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world_size):
                self._start(rank)
            self._collect(START_TIMEOUT_S, "starting")
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
        """``function(mesh, *args)`` on every rank; the results in order of rank.

        ``function`` is a module-level function of a test module. Raises RankFailed.
        """
        assert not self.broken, "this pool is broken: take a new one from the fixture"
        job = pickle.dumps((function.__module__, function.__qualname__, args))
        for pipe in self._pipes:
            # A rank that has died since closes its end; collecting the answers reports it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                pipe.send_bytes(job)
        return self._collect(timeout_s, function.__qualname__)

    def close(self) -> None:
        """End every rank, by force where asking is not enough."""
        self.broken = True
        for pipe in self._pipes:
            pipe.close()  # a rank leaves when it reads the end of its pipe
        for process in self._processes:
            try:
                process.wait(timeout=0.1 if process.poll() is None and self._hung else 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    _hung = False

    def _start(self, rank: int) -> None:
        from tests.torch_forks import ForkedPopen, shared_server  # not to be found where this file runs as a rank

        ours, theirs = Pipe()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        # These ranks live long: all that they ever sent would be read at each look at what one step sends.
        environment["TORCH_FR_BUFFER_SIZE"] = "100"
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        store = Path(self._folder.name) / "store"
        with theirs, self._stderr_file(rank).open("wb") as stderr:
            self._processes.append(
                ForkedPopen(
                    [sys.executable, __file__, str(theirs.fileno()), str(rank), str(self.world_size), str(store)],
                    server=shared_server(),
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                )
            )
        self._pipes.append(ours)

    def _collect(self, timeout_s: float, what: str) -> list[Any]:
        """One answer of every rank, or RankFailed: soon after the first failure, at the latest after timeout_s."""
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout_s
        while len(results) + len(failures) < self.world_size:
            waiting = [r for r in range(self.world_size) if r not in results and r not in failures]
            ready = wait([self._pipes[r] for r in waiting], timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in waiting:
                if self._pipes[rank] in ready:
                    ok, value = self._answer(rank)
                    (results if ok else failures)[rank] = value
                    if not ok:
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        silent = [r for r in range(self.world_size) if r not in results and r not in failures]
        if not failures and not silent:
            return [results[rank] for rank in range(self.world_size)]
        self._hung = bool(silent)
        reports = [f"rank {rank} {text}" for rank, text in failures.items()]
        reports += [f"rank {rank} {self._where_it_hangs(rank)}" for rank in silent]
        self.close()
        raise RankFailed(f"{what} on {self.world_size} ranks:\n" + "\n".join(reports))

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            ok, value = pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            code = self._processes[rank].wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            return False, f"died without a word: it {how}\n{self._stderr(rank)}"
        return ok, value

    def _where_it_hangs(self, rank: int) -> str:
        """The stacks of a rank that does not answer, which its signal handler writes to its stderr."""
        self._processes[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        return f"did not answer in time; it is here:\n{self._stderr(rank)}"

    def _stderr_file(self, rank: int) -> Path:
        return Path(self._folder.name) / f"stderr-{rank}"

    def _stderr(self, rank: int) -> str:
        return self._stderr_file(rank).read_text(errors="replace")[-4000:]


class Pools:
    """The pools of a test session by world size; a broken one is replaced when it is next asked for."""

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}

    def __call__(self, world_size: int) -> Pool:
        pool = self._pools.get(world_size)
        if pool is None or pool.broken:
            pool = self._pools[world_size] = Pool(world_size)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _serve(pipe: Connection, rank: int, world_size: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    from stepscope.rank.mesh import Mesh

    sys.path.insert(0, str(Path(__file__).parents[2]))  # where the tests' modules are found
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    mesh = Mesh(rank=rank, world_size=world_size, device=torch.device("cpu"), backend="gloo")
    pipe.send_bytes(pickle.dumps((True, None)))
    while True:
        try:
            module, qualname, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            answer = (True, getattr(importlib.import_module(module), qualname)(mesh, *args))
            message = pickle.dumps(answer)
        except Exception:  # noqa: BLE001 - the process boundary: the pool raises it again
            message = pickle.dumps((False, f"raised:\n{traceback.format_exc()}"))
        pipe.send_bytes(message)
    dist.destroy_process_group()
    os._exit(0)  # tearing down an interpreter that has imported torch takes seconds


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    descriptor, rank, world_size, store = sys.argv[1:]
    _serve(Connection(int(descriptor)), int(rank), int(world_size), store)
