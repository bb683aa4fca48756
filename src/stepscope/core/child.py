"""A program that is asked for an answer: stopped, with all that it started, when it takes too long."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def ask(command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """What ``command`` printed, and its exit code. Raises OSError where it cannot be started, and
    subprocess.TimeoutExpired where it did not answer in time: it has been killed then."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environ),
        start_new_session=True,
    )
    with child:
        try:
            out, problem = child.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, problem)
