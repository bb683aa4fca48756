"""Child processes: asked for an answer in time; never outliving whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int, *, parent: int | None = None) -> None:
    """Have the kernel send ``signum`` to this process when the one that started it ends; only Linux does it.

    parent: its process id, where it may have ended already: then ``signum`` comes at once. Raises OSError where the kernel
    refuses.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if parent is not None and os.getppid() != parent:
        signal.raise_signal(signum)


def ask(
    command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and return what it printed, with its exit code. given: on its standard input.

    Raises OSError where it cannot be started, and subprocess.TimeoutExpired where it did not answer in time: it has been
    killed then.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environ),
        start_new_session=True,
    )
    with child:
        try:
            out, problem = child.communicate(given, timeout=timeout_s)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, problem)
