"""Whether a text says anything of its job's end: looked for in every log, so that forms load where there is something."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Sign
from stepscope.store.importer import reading
from stepscope.store.log_lines import SUFFIXES

_NCCL = (
    b"Abort COMPLETE", b"Cannot assign requested address", b"Connection closed by", b"Connection refused",
    b"Connection timed out", b"Duplicate GPU detected", b"Got completion", b"Message truncated", b"Mismatched NCCL version",
    b"NVLS", b"Network is unreachable", b"No route to host", b"No space left on device", b"Proxy Call to rank",
    b"Too many open files", b"[Proxy Service", b"ibv_modify_qp", b"ibv_reg_mr", b"libibverbs", b"libibverbs.so",
    b"no socket interface found", b"same subnet", b"transport/nvls",
)  # fmt: skip
_ENDS = (b"out of memory",)
_WATCHDOG = (
    b"aught collective operation timeout", b"Watchdog caught", b"Exception (either an error or timeout)",
    b"Timeout at NCCL work", b"failure detected by watchdog", b"Received a ", b"Observed flight recorder dump signal",
    b"watchdog got stuck", b"Heartbeat monitor timed out", b"Could not acquire GIL", b"but didn't join collective",
    b"joined but didn't finish collective", b"are the lagging ranks that caused this timeout",
    b"failed to pass monitoredBarrier", b"successfully reached monitoredBarrier", b"Timed out waiting",
    b"Detected mismatch between collectives", b"Not all ranks joining collective", b"Collective sequence number: ",
    b"operation counts", b"managing GPU", b'"MainThread"',
)  # fmt: skip
SIGN_MARKS = (*_NCCL, *_ENDS, *_WATCHDOG)
"""Texts of which one stands in every line that ``store.signs`` reads, whose forms load where a text holds one."""

_BLOCK = 1 << 20
_LONGEST_MARK = 100


def has_signs(path: Path) -> bool:
    """Return whether a file may hold a sign of its job's end. Raises DataError for one that cannot be read."""
    marked = re.compile(b"|".join(map(re.escape, SIGN_MARKS)))
    end = b""
    with reading(path) as file:
        while block := file.read(_BLOCK):
            if marked.search(end + block):
                return True
            end = block[-_LONGEST_MARK:]
    return False


def signs_beside(paths: Iterable[Path]) -> tuple[Sign, ...]:
    """Return what files that are read for something else say of the job's end; an unreadable one says nothing."""
    signs: list[Sign] = []
    for path in paths:
        try:
            if path.suffix.lower() in SUFFIXES and has_signs(path):
                from stepscope.store.signs import signs_of

                signs += signs_of(path)
        except (DataError, OSError):
            continue
    return tuple(signs)
