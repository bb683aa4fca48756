"""When each process of a job on this host was gone, and whether this host had memory left, seen from outside."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from stepscope.core.errors import DataError
from stepscope.launch.black_boxes import open_box, read_box
from stepscope.records.profile import HookedProcess, HookedRank
from stepscope.results.ends.evidence import Process
from stepscope.results.ends.stacks import LeftState
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

LOOK_S = 0.5
"""How often new processes and the memory are looked at."""
MEMORY_LOOKS = 20
"""Looks at the memory that are kept: ten seconds."""
LOW_MEMORY = 0.03
"""Share of the host's memory; below it the kernel looks for a process to kill. By experience, 2026-11."""


class RankWatch:
    """The processes of a job that run on this host. Use it as a ``with`` block, and call ``wait`` again and again."""

    def __init__(self, layout: ProfileLayout, child: int) -> None:
        self.gone_ns: dict[Process, int] = {}
        self._layout = layout
        self._host = socket.gethostname()
        self._files: set[Path] = set()
        self._open: dict[int, Process] = {}
        self._boxes: dict[Process, int] = {}
        self._poll = select.poll()
        self._looked = 0.0
        self._memory: deque[float] = deque(maxlen=MEMORY_LOOKS)
        self._kills = _oom_kills()
        self._add(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for descriptor in (*self._open, *self._boxes.values()):
            os.close(descriptor)
        self._open.clear()
        self._boxes.clear()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as a process is gone."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._read_new()
        if not self._open:
            time.sleep(seconds)
            return
        for descriptor, _ in self._poll.poll(seconds * 1000):
            self.gone_ns[self._open.pop(descriptor)] = time.time_ns()
            self._poll.unregister(descriptor)
            os.close(descriptor)

    @property
    def running(self) -> frozenset[Process]:
        """Processes of the job that run on this host, the command's own among them."""
        self.wait(0)
        return frozenset(self._open.values())

    @property
    def left(self) -> dict[Process, LeftState]:
        """What processes of this host have left of themselves that no end takes from them."""
        states = {process: read_box(descriptor) for process, descriptor in self._boxes.items()}
        return {process: state for process, state in states.items() if state is not None}

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel killed for memory on this host since the job began."""
        return max(_oom_kills() - self._kills, 0)

    @property
    def memory_low(self) -> bool:
        """Whether this host had next to no memory left within the last seconds."""
        return min(self._memory, default=1.0) < LOW_MEMORY

    def _read_new(self) -> None:
        """Read the records of processes and ranks that are new, and watch them."""
        self._looked = time.monotonic()
        for path in (*self._layout.processes(), *self._layout.ranks()):
            if path not in self._files:
                self._files.add(path)
                with suppress(DataError):
                    of_rank = path.name.startswith("rank-")
                    process = read_record(path, HookedRank) if of_rank else read_record(path, HookedProcess)
                    if process.host == self._host:
                        self._add(process.pid)
                        box = getattr(process, "box", None)
                        if box is not None and (descriptor := open_box(process.pid, box)) is not None:
                            self._boxes[self._host, process.pid] = descriptor
        memory = _numbers_by_word(Path("/proc/meminfo"))
        total, left = memory.get("MemTotal:"), memory.get("MemAvailable:")
        if total and left is not None:  # the system tells what programs can still have
            self._memory.append(left / total)

    def _add(self, pid: int) -> None:
        """Watch a process of this host; one that is gone already is noted."""
        process = self._host, pid
        if process in self._open.values() or process in self.gone_ns or not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.gone_ns[process] = time.time_ns()
            return
        except OSError:  # a kernel without it, or no descriptors left: the end is known without this one's time
            return
        self._open[descriptor] = process
        self._poll.register(descriptor, select.POLLIN)


def _oom_kills() -> int:
    """Count the kernel's kills for memory on this host, and in this control group, since they are up."""
    of_host = _numbers_by_word(Path("/proc/vmstat")).get("oom_kill", 0)
    return max(of_host, _numbers_by_word(Path("/sys/fs/cgroup/memory.events")).get("oom_kill", 0))


def _numbers_by_word(path: Path) -> dict[str, int]:
    """Map the first word of each line to the number behind it."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
