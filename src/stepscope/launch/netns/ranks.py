"""The ranks of a world: started by hand, one environment each, watched, ended together, reported as torchrun reports.

Not one torchrun per host: on a machine with few cores eight launchers that each import torch cost more than the ranks,
and their logs would number ranks within a host.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.launch.netns.plan import INTERFACE, address

PORT = 29500
STOP_GRACE_S = 3.0
"""From SIGTERM to SIGKILL; less than a controller gives this process, more than a rank gives itself."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A started rank and where it is."""

    rank: int
    local_rank: int
    host: int
    process: subprocess.Popen[bytes]


def environments(host_of_rank: Sequence[int]) -> tuple[dict[str, str], ...]:
    """What each rank's environment has beside the common part. Pure."""
    found: list[dict[str, str]] = []
    for rank, host in enumerate(host_of_rank):
        neighbours = [r for r, h in enumerate(host_of_rank) if h == host]
        found.append(
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(neighbours.index(rank)),
                "WORLD_SIZE": str(len(host_of_rank)),
                "LOCAL_WORLD_SIZE": str(len(neighbours)),
                "GROUP_RANK": str(host),
                "GROUP_WORLD_SIZE": str(len(set(host_of_rank))),
                "MASTER_ADDR": address(0),
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "NCCL_SOCKET_IFNAME": INTERFACE,
                "TP_SOCKET_IFNAME": INTERFACE,
            }
        )
    return tuple(found)


def start_ranks(
    argv: Sequence[str],
    host_of_rank: Sequence[int],
    *,
    environ: Mapping[str, str],
    log_dir: Path,
    prepare: Callable[[int], Callable[[], None]],
) -> tuple[Rank, ...]:
    """One process for each rank. Output goes to ``log_dir``/ranks/attempt_0/RANK/std{out,err}.log.

    prepare(host): called in the new process, before it runs.
    """
    ranks = []
    for rank, own in enumerate(environments(host_of_rank)):
        logs = log_dir / "ranks" / "attempt_0" / str(rank)
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "stdout.log").open("wb") as out, (logs / "stderr.log").open("wb") as err:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environ, **own},
                preexec_fn=prepare(host_of_rank[rank]),
            )
        ranks.append(Rank(rank, int(own["LOCAL_RANK"]), host_of_rank[rank], process))
    return tuple(ranks)


def end_ranks(ranks: Sequence[Rank], *, grace_s: float = STOP_GRACE_S) -> None:
    """SIGTERM to those that run, SIGKILL to those that still run after ``grace_s``."""
    running = [r for r in ranks if r.process.poll() is None]
    for rank in running:
        rank.process.send_signal(signal.SIGTERM)
    limit = time.monotonic() + grace_s
    for rank in running:
        try:
            rank.process.wait(timeout=max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


def failure_report(ranks: Sequence[Rank], first: Rank) -> str:
    """Ranks that ended with an error, ``first`` apart, in the form that launch/verdict.py reads from torchrun."""
    failed = [r for r in ranks if r.process.returncode]
    rule = "=" * 60
    blocks = [_block(index, rank) for index, rank in enumerate(r for r in failed if r is not first)]
    return "\n".join(
        [rule, "Failures:", *(blocks or ["  <NO_OTHER_FAILURES>"]), "-" * 60,
         "Root Cause (first observed failure):", _block(0, first), rule]
    )  # fmt: skip


def _block(index: int, rank: Rank) -> str:
    return (
        f"[{index}]:\n"
        f"  host      : host{rank.host}\n"
        f"  rank      : {rank.rank} (local_rank: {rank.local_rank})\n"
        f"  exitcode  : {rank.process.returncode} (pid: {rank.process.pid})"
    )
