"""Topology: the text of ``nvidia-smi topo -m``; :mod:`stepscope.machine.topology` reads it."""

from __future__ import annotations

import shutil
import subprocess

from stepscope.core.errors import Unavailable
from stepscope.core.processes import ask
from stepscope.machine.probes._common import Facts, Probe, ProbeContext


def run(context: ProbeContext) -> Facts | Unavailable:
    """The raw text; a driver in trouble makes nvidia-smi hang, so it is killed after ``command_timeout_s``."""
    program = shutil.which("nvidia-smi", path=context.environ.get("PATH"))
    if program is None:
        return Unavailable("nvidia-smi is not on PATH")
    environ = {**context.environ, "LC_ALL": "C"}
    try:
        told = ask([program, "topo", "-m"], environ=environ, timeout_s=context.command_timeout_s)
    except OSError as error:
        return Unavailable(f"{program} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Unavailable(f"`nvidia-smi topo -m` did not answer within {context.command_timeout_s:g} s")
    if told.returncode != 0:
        said = (told.stderr.strip() or told.stdout.strip() or "no message").splitlines()[-1]
        return Unavailable(f"`nvidia-smi topo -m` failed with exit code {told.returncode}: {said}")
    if not told.stdout.strip():
        return Unavailable("`nvidia-smi topo -m` printed nothing")
    return {"topology": told.stdout}


PROBE = Probe(summary="links between GPUs and NICs (nvidia-smi topo -m)", run=run)
