"""Errors that stepscope raises on purpose, and the exit code each one ends the command with.

    StepscopeError
    ├── UsageError        2   the user asked for something that cannot be (typo, bad matrix, bad option)
    ├── DataError         2   a file is missing, truncated or corrupt: file, expected, found
    ├── MissingError      3   the environment lacks what was asked (GPU, backend, package, permission)
    ├── CheckFailed       6   a --fail-if or --strict condition holds
    └── Interrupted     130   stopped by a signal; results are flushed and the run can be resumed

Every message says what, why and how to fix. Only ``cli/`` prints them and exits; anything else that
escapes to the top is a bug in stepscope (exit code 1).
"""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


class ExitCode:
    """The exit codes of every command."""

    OK = 0
    BUG = 1
    USAGE = 2
    ENVIRONMENT = 3
    SOME_CELLS_FAILED = 4
    ALL_CELLS_FAILED = 5
    CHECK_FAILED = 6
    SIGHUP = 129
    SIGINT = 130
    SIGPIPE = 141
    SIGTERM = 143


class StepscopeError(Exception):
    """Base of all expected errors: ``what`` happened, ``why``, and the ``fix`` a user can apply."""

    exit_code = ExitCode.BUG

    def __init__(self, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message without the way to it."""
        return [f"{type(self).__name__}: {self}"]

    @property
    def line(self) -> str:
        """``what``, ``why`` and ``fix`` on one line: for records, and for tables with one row a cell."""
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}; fix: {self.fix}" if self.fix else text


class UsageError(StepscopeError):
    exit_code = ExitCode.USAGE


class DataError(StepscopeError):
    exit_code = ExitCode.USAGE


def unreadable(path: object, error: OSError | ValueError) -> DataError:
    """Return the error for a path that the system does not let be read; ``path`` as the message names it."""
    why = getattr(error, "strerror", None) or str(error)
    return DataError(f"{path}: cannot be read", why=why, fix="check the path and its permissions")


class NoTraceError(DataError):
    """A path holds something else than a trace: another command may read it."""


class MissingError(StepscopeError):
    exit_code = ExitCode.ENVIRONMENT


class CheckFailed(StepscopeError):  # noqa: N818 - reads as the state it reports
    exit_code = ExitCode.CHECK_FAILED


class Interrupted(StepscopeError):  # noqa: N818
    """Stopped by a signal: the exit code is 128 + ``signum``, as a shell reports it."""

    exit_code = ExitCode.SIGINT

    def __init__(self, what: str, *, signum: int = 2, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.exit_code = 128 + signum


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A fact that could not be had, and why. Stands where the fact would stand; never 0, never a guess."""

    reason: str


_DEVICE_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUDA out of memory",
    "HIP out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
"""Of device memory outside torch's own allocator: CUDA itself, library handles, NCCL's buffers."""

_HOST_OUT_OF_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")

_PEER_GONE = (
    "Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe", "Timed out waiting",
    "Application timeout", "wait timeout", "remote process exited", "Socket Timeout", "NCCL communicator was aborted",
    "failed to recv, got 0 bytes",
)  # fmt: skip
"""Parts of the messages of a rank whose peer is gone or silent."""


def failure_sign(message: str) -> str | None:
    """Return ``oom`` (the device), ``host_oom`` or ``victim`` (a peer is gone) by an exception's message, else None."""
    if any(sign in message for sign in _DEVICE_OUT_OF_MEMORY):
        return "oom"
    if any(sign in message for sign in _HOST_OUT_OF_MEMORY):
        return "host_oom"
    return "victim" if any(sign in message for sign in _PEER_GONE) else None
