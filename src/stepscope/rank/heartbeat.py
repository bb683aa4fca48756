"""Where this rank is, told to the controller by a thread that never blocks training; also the memory watchdog.

The train loop only assigns attributes. The thread writes a file when they changed, and asks the flight recorder what was
last enqueued when nothing has moved for a while, which is what names the rank that never called a collective.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from stepscope.machine.cgroups import cgroup_limits
from stepscope.rank import plancheck
from stepscope.records import codec
from stepscope.records.samples import Heartbeat

INTERVAL_S = 0.25
TICKS_PER_MEMORY_CHECK = 2
STUCK_AFTER_S = 2.0
ASK_AGAIN_S = 3.0
LOW_MEMORY_FRACTION = 0.05
REPEATED_PHASES = ("warmup", "measure", "evaluate")
"""Where a cell does the same thing over and over: how long it took before says how long it may take again."""


class Pulse:
    """This rank's position: ``cell_id``, ``phase`` and ``step``, assigned by the train loop at any rate.

    ``op`` and ``size_bytes``: the collective being measured, None outside sweeps.
    """

    def __init__(self, *, rank: int, path: Path, on_low_memory: Callable[[str], None]) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.cell_id: str | None = None
        self.phase = "start"
        self.step = 0
        self.op: str | None = None
        self.size_bytes: int | None = None
        self._entered_ns = 0
        self._path = path
        self._on_low_memory = on_low_memory
        self._stop = threading.Event()
        self._written: tuple[object, ...] | None = None
        self._position: tuple[str | None, str, int] = (None, "", 0)
        self._moved_ns = 0
        self._longest_ns = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stepscope-heartbeat", daemon=True)

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self.beat()

    def enter(self, phase: str, *, step: int = 0, op: str | None = None, size_bytes: int | None = None) -> None:
        """Change the phase: written at once."""
        if (op, size_bytes) != (self.op, self.size_bytes):
            self._entered_ns = time.time_ns()
        self.phase, self.step, self.op, self.size_bytes = phase, step, op, size_bytes
        self.beat()

    def move_to(self, path: Path, cell_id: str | None) -> None:
        """Write about this cell from now on, into its folder."""
        with self._lock:
            self._path, self.cell_id, self._written = path, cell_id, None

    def beat(self, enqueued: tuple[int, str | None] | None = None) -> None:
        """Write the heartbeat, where anything has changed."""
        with self._lock:
            state = (self.cell_id, self.phase, self.step, self.op, self.size_bytes, enqueued)
            if state == self._written:
                return
            self._note_move()
            record = Heartbeat(
                rank=self.rank, host=self.host, pid=os.getpid(), cell_id=self.cell_id, phase=self.phase, step=self.step,
                collectives_enqueued=None if enqueued is None else enqueued[0],
                last_collective=None if enqueued is None else enqueued[1],
                time_ns=time.time_ns(), moved_ns=self._moved_ns, longest_ns=self._longest_ns,
                op=self.op, size_bytes=self.size_bytes, entered_ns=self._entered_ns,
            )  # fmt: skip
            try:
                temporary = self._path.with_name(f".{self._path.name}.tmp")
                temporary.write_bytes(codec.encode_line(record, header=True))
                temporary.replace(self._path)
            except OSError:
                return  # a full disk must not stop training here: the samples' own write reports it
            self._written = state

    def _note_move(self) -> None:
        """Note when cell, phase or step last changed, and the longest time between."""
        now, before, position = time.time_ns(), self._position, (self.cell_id, self.phase, self.step)
        if position == before:
            return
        if position[0] != before[0]:
            self._longest_ns = 0
        elif before[1] in REPEATED_PHASES:
            self._longest_ns = max(self._longest_ns, now - self._moved_ns)
        self._position, self._moved_ns = position, now

    def _run(self) -> None:
        """Write heartbeats until stopped, and look after memory and ranks that are stuck."""
        position = (self.cell_id, self.phase, self.step)
        ask_at = time.monotonic() + STUCK_AFTER_S
        for tick in itertools.count():
            if self._stop.wait(INTERVAL_S):
                return
            if tick % TICKS_PER_MEMORY_CHECK == 0:
                self._watch_memory()
            now = (self.cell_id, self.phase, self.step)
            if now != position:
                position, ask_at = now, time.monotonic() + STUCK_AFTER_S
                self.beat()
            elif time.monotonic() > ask_at:
                ask_at = time.monotonic() + ASK_AGAIN_S
                self.beat(plancheck.last_enqueued())

    def _watch_memory(self) -> None:
        """Report a host with little memory left."""
        left, total = host_memory_left()
        if left < LOW_MEMORY_FRACTION * total:
            self._on_low_memory(
                f"{left / 2**20:.0f} MiB of {total / 2**20:.0f} MiB host memory left, "
                f"this rank holds {psutil.Process().memory_info().rss / 2**20:.0f} MiB"
            )


def host_memory_left() -> tuple[int, int]:
    """Return (bytes left, bytes in all): of the host, or of the control group where that leaves less."""
    memory = psutil.virtual_memory()
    limits = cgroup_limits(Path("/"))
    if limits.memory_limit_bytes is None or limits.memory_used_bytes is None:
        return memory.available, memory.total
    left = limits.memory_limit_bytes - limits.memory_used_bytes
    return min((memory.available, memory.total), (left, limits.memory_limit_bytes))
