"""Whose a world's processes are, and ending those whose owner is gone.

Namespaces here have no names and end with their last process, so leftovers are processes. Each carries the name of the
command that owns it in its environment; a name whose owner lives is left alone, whoever asks.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "STEPSCOPE_NETNS_OWNER"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from any other that has or will have its number.

    pid_namespace: inode of the namespace in which ``pid`` counts. started: clock ticks after boot.
    """

    pid_namespace: int
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid_namespace}-{self.pid}-{self.started}"


def this_process() -> Owner:
    return Owner(_namespace(), os.getpid(), _started(os.getpid()) or 0)


def parse_owner(text: str) -> Owner | None:
    """The owner with this name; None when it is not one."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    return Owner(*(int(part) for part in parts))


def sweep() -> list[int]:
    """End processes of worlds whose owner has ended; returns their numbers. Other users' are not seen."""
    here = _namespace()
    swept = []
    for folder in _PROC.glob("[0-9]*"):
        pid = int(folder.name)
        started = _started(pid)
        owner = _owner_of(folder)
        if owner is None or owner.pid_namespace != here or _started(owner.pid) == owner.started:
            continue
        # Between the look and the signal the number may have gone to another process.
        if started is not None and _started(pid) == started:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            swept.append(pid)
    return swept


def _owner_of(folder: Path) -> Owner | None:
    try:
        environ = (folder / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{VARIABLE}=".encode()
    names = [v.removeprefix(prefix) for v in environ.split(b"\0") if v.startswith(prefix)]
    return parse_owner(names[-1].decode(errors="replace")) if names else None


def _started(pid: int) -> int | None:
    """Clock ticks after boot at which ``pid`` began; None when there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _namespace() -> int:
    return (_PROC / "self" / "ns" / "pid").stat().st_ino
