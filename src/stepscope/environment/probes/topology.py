"""Topology: the text of ``nvidia-smi topo -m``; :mod:`stepscope.environment.topology` reads it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

from stepscope.core.errors import Unavailable
from stepscope.environment.probes._common import Facts, Probe, ProbeContext


def run(context: ProbeContext) -> Facts | Unavailable:
    """The raw text; a driver in trouble makes nvidia-smi hang, so it is killed after ``command_timeout_s``."""
    program = shutil.which("nvidia-smi", path=context.environ.get("PATH"))
    if program is None:
        return Unavailable("nvidia-smi is not on PATH")
    command = [program, "topo", "-m"]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**context.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Unavailable(f"{program} cannot be started: {error.strerror}")
    with child:
        try:
            out, problem = child.communicate(timeout=context.command_timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return Unavailable(f"`nvidia-smi topo -m` did not answer within {context.command_timeout_s:g} s")
    if child.returncode != 0:
        said = (problem.strip() or out.strip() or "no message").splitlines()[-1]
        return Unavailable(f"`nvidia-smi topo -m` failed with exit code {child.returncode}: {said}")
    if not out.strip():
        return Unavailable("`nvidia-smi topo -m` printed nothing")
    return Facts(values={"topology": out})


PROBE = Probe(summary="links between GPUs and NICs (nvidia-smi topo -m)", run=run)
