"""Starting a worker group in an emulated network: the same contract as launch/torchrun.py, which also stops it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from stepscope.launch.netns import namespaces, world
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
    that failed: see probe.py for asking first.
    """
    namespaces.sweep()
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
    return launch(line, files.launcher_log, {**environ, namespaces.VARIABLE: str(namespaces.this_process())})
