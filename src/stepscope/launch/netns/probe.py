"""Whether this machine permits an emulated network, found by making a small one in a process that then ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

from stepscope.core.errors import Unavailable
from stepscope.core.processes import die_with_parent
from stepscope.launch.netns import world
from stepscope.launch.netns.build import tool

TIMEOUT_S = 30.0


def probe_emulation(*, delayed: bool = False) -> Unavailable | None:
    """Make two hosts, with a delay if ``delayed``, and let them go: some 0.3 s. Nothing of it stays. None: it works."""
    if sys.platform != "linux":
        return Unavailable("emulated networks need Linux")
    for program in ("ip", "tc"):
        if tool(program) is None:
            return Unavailable(f"the program {program!r} is missing: install iproute2")
    try:
        done = subprocess.run(
            world.command(f"1gbit:2{',delay=1ms' if delayed else ''}", parent=os.getpid()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            preexec_fn=partial(die_with_parent, signal.SIGTERM, parent=os.getpid()),
        )
    except subprocess.TimeoutExpired:
        return Unavailable(f"making an emulated network took more than {TIMEOUT_S:.0f} s")
    except (OSError, subprocess.SubprocessError) as error:
        return Unavailable(f"{sys.executable} cannot be started: {error}")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return Unavailable(said[-1] if said else f"making an emulated network ended with {done.returncode}")
    return None
