"""Starting a worker group in an emulated network, and asking first whether this machine permits one.

The contract is that of launch/torchrun.py, which also stops the group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from stepscope.core.errors import Unavailable
from stepscope.core.processes import die_with_parent
from stepscope.launch.netns import world
from stepscope.launch.netns.build import tool
from stepscope.launch.torchrun import Launched, environment, launch
from stepscope.records.network import EmulatedNetwork
from stepscope.store.layout import GroupLayout
from stepscope.store.writer import make_dir


def start(
    files: GroupLayout,
    network: EmulatedNetwork,
    *,
    world_size: int,
    threads_per_rank: int,
    extra_env: Mapping[str, str],
    argv: Sequence[str] | None = None,
) -> Launched:
    """Start a worker group in ``network``; end it with torchrun.stop. Raises MissingError when its log cannot be written.

    argv: what every rank runs; None: the rank half with the group's spec. A network that cannot be made shows as a group
    that failed: ``probe_emulation`` asks first.
    """
    make_dir(files.rank_logs)
    line = world.command_of_ranks(
        str(network),
        parent=os.getpid(),
        world_size=world_size,
        log_dir=files.rank_logs,
        error_file=files.error(0),
        argv=argv or [sys.executable, "-m", "stepscope.rank", str(files.spec)],
    )
    environ = environment(os.environ, threads_per_rank=threads_per_rank, extra=extra_env)
    return launch(line, files.launcher_log, environ)


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
        lines = done.stderr.strip().splitlines()
        return Unavailable(lines[-1] if lines else f"making an emulated network ended with {done.returncode}")
    return None
