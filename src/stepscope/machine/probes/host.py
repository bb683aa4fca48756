"""Host: name and what it resolves to, operating system, kernel, Python, process limits, scheduling, disk, /dev/shm."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import threading
from pathlib import Path

from stepscope.core.errors import Unavailable
from stepscope.machine.probes._common import Facts, Probe, ProbeContext, read_text
from stepscope.records.environment import FilesystemFact, LimitsFact

RESOLVE_TIMEOUT_S = 5.0
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}


def run(context: ProbeContext) -> Facts:
    """Host facts."""
    name = socket.gethostname()
    return {
        "host": name,
        "os": _distribution(context.root) or platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "hostname_addresses": resolve(name, timeout_s=RESOLVE_TIMEOUT_S),
        "limits": _limits(),
        "shared_memory": filesystem(context.root / "dev/shm"),
        "disk": filesystem(context.cwd),
        "scheduling_policy": _policy(),
        "batch_scheduling": batch_scheduling_allowed(),
    }


def resolve(name: str, *, timeout_s: float) -> tuple[str, ...] | Unavailable:
    """IP addresses that ``name`` resolves to; the resolver may hang for minutes, so it gets ``timeout_s`` seconds."""
    answer: list[tuple[str, ...] | Unavailable] = []

    def ask() -> None:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            answer.append(Unavailable(f"the host name {name!r} does not resolve: {error.strerror or error}"))
        else:
            answer.append(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return (
        answer[0] if answer else Unavailable(f"resolving {name!r} took over {timeout_s:g} s: the name server is slow")
    )


def batch_scheduling_allowed() -> bool | Unavailable:
    """Whether this process may run under SCHED_BATCH; tried on a thread of its own, so nothing stays changed."""
    if not hasattr(os, "sched_setscheduler"):
        return Unavailable(f"{platform.system()} has no SCHED_BATCH")
    allowed: list[bool] = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: the calling thread only
        except OSError:
            allowed.append(False)
        else:
            allowed.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return allowed[0]


def filesystem(path: Path) -> FilesystemFact | Unavailable:
    """Size and free space of the file system that holds ``path``."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Unavailable(f"{path}: {error.strerror}")
    return FilesystemFact(path=str(path.absolute()), total_bytes=usage.total, free_bytes=usage.free)


def _policy() -> str | Unavailable:
    if not hasattr(os, "sched_getscheduler"):
        return Unavailable(f"{platform.system()} does not report it")
    number = os.sched_getscheduler(0) & ~getattr(os, "SCHED_RESET_ON_FORK", 0)
    return _POLICIES.get(number, str(number))


def _limits() -> LimitsFact:
    def value(limit: int) -> int | None:
        return None if limit == resource.RLIM_INFINITY else limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return LimitsFact(open_files_soft=value(soft), open_files_hard=value(hard), locked_memory_bytes=value(locked))


def _distribution(root: Path) -> str | None:
    text = read_text(root / "etc/os-release") or ""
    pairs = (line.partition("=") for line in text.splitlines())
    return next((value.strip("\"'") for key, _, value in pairs if key == "PRETTY_NAME"), None)


PROBE = Probe(summary="host, operating system, limits, scheduling, disk", run=run)
