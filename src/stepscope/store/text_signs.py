"""Whether a text says anything of its job's end: looked for in every log, so that forms load where there is something."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Sign
from stepscope.store.log_lines import SUFFIXES, marks_in

_NCCL = (
    b": wrong ", b"Abort COMPLETE", b"Bad address", b"Call to recv from ", b"Call to send to ",
    b"Cannot allocate memory", b"Cannot assign requested address", b"Connection closed by", b"Connection refused",
    b"Connection timed out", b"Duplicate GPU detected", b"Failed to CUDA ", b"Got async event", b"Got completion",
    b"Message truncated", b"Mismatched NCCL version", b"NET/OFI ", b"NVLS", b"Network is unreachable",
    b"No route to host", b"No space left on device", b"Proxy Call to rank", b"Too many open files", b"[Proxy Service",
    b"async fatal event", b"collective mismatch error", b"failed to extend", b"has already checked in",
    b"ibv_modify_qp", b"libibverbs", b"libibverbs.so", b"message truncated", b"mismatch in rank count",
    b"no socket interface found", b"nvmlInit", b"onnect to ", b"same subnet", b"shared memory segment",
    b"transport/nvls",
)  # fmt: skip
_ENDS = (
    b" received at time=", b"(): invalid ", b"(errno: 1", b"(local_rank: ", b": Success (0)", b"Aborted",
    b"Assertion `", b"Bus error", b"CANCELLED AT", b"CUDA error: ", b"Caught signal ", b"Child process with PID",
    b"DataLoader worker", b"DefaultCPUAllocator", b"Exit Code:", b"Expected to have finished reduction",
    b"Fatal Python error", b"HIP error: ", b"Killed", b"MPI_ABORT was invoked", b"Memory access fault by GPU",
    b"Memory on the node (IP", b"NCCLABORTEDCOMM", b"NVRM: Xid", b"No space left on device", b"Node failure on ",
    b"OOMKilled", b"Process name: [[", b"RESOURCE_EXHAUSTED", b"RUNNING AT", b"Remote daemon: ",
    b"Resource temporarily unavailable", b"Root Cause", b"SXid (PCI:", b"Segmentation fault", b"The actor died",
    b"The node was low on", b"Transport retry count exceeded", b"Unable to find address for: ", b"Unexpected bus error",
    b"Worker exit type: ", b"_ArrayMemoryError", b"_STATUS_ALLOC_FAILED", b"a keep-alive heartbeat", b"bad_alloc",
    b"bus error", b"cannot be retrieved", b"connect() timed out", b"connectFullMesh failed", b"corrupted ",
    b"cudaGetDeviceCount", b"ddress already in use", b"did not receive grad for rank", b"died with <Signals",
    b"double free or corruption", b"due to memory pressure", b"due to signal ", b"exitcode", b"exited with code ",
    b"exits with return code", b"failed (exitcode: ", b"failed on SocketImpl", b"failed to connect to any",
    b"got signal: ", b"has been marked dead", b"has failed to connect to", b"in store based barrier", b"killed",
    b"malloc(): ", b"mark a variable ready only once", b"marked as ready twice", b"node running low on memory",
    b"noticed that process rank", b"oom-kill", b"oom_kill", b"out of memory", b"out of resource: ", b"received SIGTERM",
    b"receiving SIGTERM", b"retrieving ncclUniqueId from", b"returned non-zero exit status", b"segmentation fault",
    b"socket has timed out", b"srun: error", b"tcp/pair.cc", b"terminated with", b"terminated with the following error",
    b"ut of memory: Kill", b"wait timeout after", b"waiting for clients", b"would exceed allowed memory",
)  # fmt: skip
_EXCEPTIONS = (
    b" NCCL WARN ", b"ArithmeticError", b"AssertionError", b"AttributeError", b"BrokenPipeError",
    b"ConnectionResetError", b"Cuda failure", b"DistBackendError", b"DistNetworkError", b"DistStoreError", b"EOFError",
    b"FileNotFoundError", b"ImportError", b"IndexError", b"KeyError", b"KeyboardInterrupt", b"Last error:",
    b"MemoryError", b"ModuleNotFoundError", b"NameError", b"NotImplementedError", b"OSError", b"OutOfMemoryError",
    b"PermissionError", b"RendezvousConnectionError", b"RendezvousTimeoutError", b"RuntimeError", b"Traceback (most",
    b"TypeError", b"UnboundLocalError", b"UnicodeDecodeError", b"ValueError", b"ZeroDivisionError",
)  # fmt: skip
_WATCHDOG = (
    b'"MainThread"', b"Collective sequence number: ", b"Could not acquire GIL",
    b"Detected mismatch between collectives", b"Exception (either an error or timeout)", b"Heartbeat monitor timed out",
    b"Input/output mismatch in", b"Missing dump files", b"No errors found for this",
    b"Not all ranks joining collective", b"Observed flight recorder dump signal", b"ProcessGroupNCCL watchdog hang",
    b"Received a ", b"Timed out waiting", b"Timeout at NCCL work", b"Watchdog caught",
    b"are the lagging ranks that caused this timeout", b"aught collective operation timeout",
    b"but didn't join collective", b"collective timeout or exc", b"failed to pass monitoredBarrier",
    b"failure detected by watchdog", b"joined but didn't finish collective", b"managing GPU", b"missed FR dumps",
    b"operation counts", b"successfully reached monitoredBarrier", b"watchdog got stuck",
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
