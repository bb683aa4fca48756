"""Whether a text says anything of its job's end: looked for in every log, so that forms load where there is something."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Sign
from stepscope.store.log_lines import SUFFIXES, marks_in

_NCCL = (
    b": wrong ", b"Abort COMPLETE", b"Call to recv from ", b"Call to send to ", b"Cannot allocate memory",
    b"Cannot assign requested address", b"Connection closed by", b"Connection refused", b"Connection timed out",
    b"Duplicate GPU detected", b"Got async event", b"Got completion", b"Message truncated", b"Mismatched NCCL version",
    b"NET/OFI ", b"NVLS", b"Network is unreachable", b"No route to host", b"No space left on device",
    b"Proxy Call to rank", b"Too many open files", b"[Proxy Service", b"async fatal event", b"failed to extend",
    b"ibv_modify_qp", b"libibverbs", b"libibverbs.so", b"no socket interface found", b"onnect to ", b"same subnet",
    b"shared memory segment", b"transport/nvls",
)  # fmt: skip
_ENDS = (
    b"(errno: 1", b"(local_rank: ", b"Aborted", b"Assertion `", b"Bus error", b"CANCELLED AT", b"CUDA error: ",
    b"Child process with PID", b"DataLoader worker", b"DefaultCPUAllocator", b"Exit Code:",
    b"Expected to have finished reduction", b"Fatal Python error", b"Killed", b"NCCLABORTEDCOMM", b"NVRM: Xid",
    b"OOMKilled", b"RESOURCE_EXHAUSTED", b"RUNNING AT", b"Root Cause", b"Segmentation fault", b"Unexpected bus error",
    b"Worker exit type: ", b"_STATUS_ALLOC_FAILED", b"bad_alloc", b"bus error", b"cannot be retrieved",
    b"connect() timed out", b"cudaGetDeviceCount", b"ddress already in use", b"did not receive grad for rank",
    b"died with <Signals", b"due to signal ", b"exitcode", b"exited with code ", b"exits with return code",
    b"failed (exitcode: ", b"failed to connect to any", b"got signal: ", b"has failed to connect to",
    b"in store based barrier", b"killed", b"mark a variable ready only once", b"marked as ready twice",
    b"node running low on memory", b"noticed that process rank", b"oom-kill", b"oom_kill", b"out of memory",
    b"received SIGTERM", b"receiving SIGTERM", b"retrieving ncclUniqueId from", b"returned non-zero exit status",
    b"segmentation fault", b"socket has timed out", b"srun: error", b"terminated with",
    b"terminated with the following error", b"ut of memory: Kill", b"wait timeout after", b"waiting for clients",
)  # fmt: skip
_EXCEPTIONS = (
    b"ArithmeticError", b"AssertionError", b"AttributeError", b"BrokenPipeError", b"ConnectionResetError",
    b"Cuda failure", b"DistBackendError", b"DistNetworkError", b"DistStoreError", b"EOFError", b"FileNotFoundError",
    b"ImportError", b"IndexError", b"KeyError", b"KeyboardInterrupt", b"MemoryError", b"ModuleNotFoundError",
    b"NameError", b"NotImplementedError", b"OSError", b"OutOfMemoryError", b"PermissionError",
    b"RendezvousConnectionError", b"RendezvousTimeoutError", b"RuntimeError", b"Traceback (most", b"TypeError",
    b"UnboundLocalError", b"UnicodeDecodeError", b"ValueError", b"ZeroDivisionError",
)  # fmt: skip
_WATCHDOG = (
    b"aught collective operation timeout", b"Watchdog caught", b"Exception (either an error or timeout)",
    b"Timeout at NCCL work", b"failure detected by watchdog", b"Received a ", b"Observed flight recorder dump signal",
    b"watchdog got stuck", b"Heartbeat monitor timed out", b"Could not acquire GIL", b"but didn't join collective",
    b"joined but didn't finish collective", b"are the lagging ranks that caused this timeout",
    b"failed to pass monitoredBarrier", b"successfully reached monitoredBarrier", b"Timed out waiting",
    b"Detected mismatch between collectives", b"Not all ranks joining collective", b"Collective sequence number: ",
    b"Input/output mismatch in", b"missed FR dumps", b"Missing dump files", b"No errors found for this",
    b"operation counts", b"managing GPU", b'"MainThread"',
)  # fmt: skip
SIGN_MARKS = (*_NCCL, *_ENDS, *_WATCHDOG, *_EXCEPTIONS)
"""Texts of which one stands in every line that ``store.signs`` reads, whose forms load where a text holds one."""


def signs_beside(paths: Iterable[Path]) -> tuple[Sign, ...]:
    """Return what files that are read for something else say of the job's end; an unreadable one says nothing."""
    signs: list[Sign] = []
    for path in paths:
        try:
            if Path(path.name.removesuffix(".gz")).suffix.lower() in SUFFIXES and (marks := marks_in(path, SIGN_MARKS)):
                from stepscope.store.signs import signs_of

                signs += signs_of(path, marks)
        except (DataError, OSError):
            continue
    return tuple(signs)
