"""One torchrun per worker group, in an OS session of its own: Ctrl-C reaches the controller alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError
from stepscope.core.installing import install_extra
from stepscope.core.processes import die_with_parent
from stepscope.store.layout import GroupLayout
from stepscope.store.writer import make_dir, writing

GRACE_S = 5.0


def require_torch() -> None:
    """Raise MissingError where ranks could not import torch: before anything is planned, fetched or started."""
    try:
        installed = find_spec("torch") is not None
    except ValueError:  # a stand-in that says nothing of itself
        installed = True
    if not installed:
        raise MissingError(
            "this command trains or communicates with PyTorch, and torch is not installed",
            why=f"{sys.executable} has no package torch; traces, results and plans are read without it",
            fix=install_extra("torch"),
        )


@record
class Node:
    """This host's place among ``nodes`` hosts that meet at the first one's ``address`` and ``port``.

    Static rendezvous: c10d's own hangs where the first host's name does not resolve to that address (pytorch/pytorch#73656).
    """

    rank: int
    nodes: int
    address: str
    port: int


def command(spec: Path, *, world_size: int, log_dir: Path, node: Node | None = None) -> list[str]:
    """Return the command line of one worker group on this host. Pure. world_size: ranks on this host. node: None: it is
    alone."""
    if node is None:
        meeting = ["--standalone"]
    else:
        meeting = ["--nnodes", str(node.nodes), "--node-rank", str(node.rank),
                   "--master-addr", node.address, "--master-port", str(node.port)]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *meeting,
        "--nproc-per-node", str(world_size), "--max-restarts", "0", "--monitor-interval", "0.1",
        "--log-dir", str(log_dir), "--redirects", "3",
        "-m", "stepscope.rank", str(spec),
    ]  # fmt: skip


def environment(base: Mapping[str, str], *, threads_per_rank: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the ranks: ours, the thread count, then the matrix's own variables. Pure."""
    left_out = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {
        **{k: v for k, v in base.items() if k not in left_out},
        "OMP_NUM_THREADS": str(threads_per_rank),
        "PYTHONUNBUFFERED": "1",
        # NCCL keeps a flight recorder only when it is given room; gloo always does.
        "TORCH_FR_BUFFER_SIZE": base.get("TORCH_FR_BUFFER_SIZE", "2000"),
        **extra,
    }


@dataclass(frozen=True, slots=True)
class Launched:
    """A running launcher and the file its own output goes to."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]


def start(files: GroupLayout, *, world_size: int, threads_per_rank: int, extra_env: Mapping[str, str]) -> Launched:
    """Start a worker group. Raises MissingError when its log cannot be written."""
    make_dir(files.rank_logs)
    return launch(
        command(files.spec, world_size=world_size, log_dir=files.rank_logs),
        files.launcher_log,
        environment(os.environ, threads_per_rank=threads_per_rank, extra=extra_env),
    )


def launch(argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> Launched:
    """Start ``argv`` in its own session, which ends when this process does; raises MissingError when ``log`` cannot be
    written."""
    with writing(log):
        output = log.open("wb")
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environ,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, signal.SIGTERM, parent=os.getpid()),
    )
    return Launched(process, output)


def stop(launched: Launched, *, grace_s: float = GRACE_S) -> None:
    """End a group and everything it started: SIGTERM, a moment, SIGKILL. Safe on a group that has ended."""
    process, ours = launched.process, []
    if process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            ours = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    for child in ours:
        with suppress(psutil.NoSuchProcess):
            child.kill()  # psutil compares creation times: a recycled pid is never hit
    process.wait()
    launched.log.close()
