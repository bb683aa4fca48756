"""``python -m stepscope.launch.netns.world``: makes an emulated network, runs ranks in it, and takes it down with
itself.

One process owns everything: it leaves this machine's network before it makes anything, its ranks and its router are
killed by the kernel when it ends in whatever way, and namespaces without a process and their links go by themselves.

Ranks are started by hand, one environment each, watched, ended together and reported as torchrun reports them: not
one torchrun per host: on a machine with few cores eight launchers that each import torch cost more than the ranks,
and their logs would number ranks within a host.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import ExitCode, MissingError, StepscopeError
from stepscope.core.processes import die_with_parent
from stepscope.launch.netns.build import World, built
from stepscope.launch.netns.namespaces import entering
from stepscope.launch.netns.plan import INTERFACE, address
from stepscope.records.network import host_of_ranks, hosts_for, parse_network

PORT = 29500
STOP_GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL: less than a controller gives this process, more than a rank gives itself."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A started rank and where it is."""

    rank: int
    local_rank: int
    host: int
    process: subprocess.Popen[bytes]


def environments(host_of_rank: Sequence[int]) -> tuple[dict[str, str], ...]:
    """Return what each rank's environment has beside the common part. Pure."""
    environs: list[dict[str, str]] = []
    for rank, host in enumerate(host_of_rank):
        neighbours = [r for r, h in enumerate(host_of_rank) if h == host]
        environs.append(
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
    return tuple(environs)


def start_ranks(
    argv: Sequence[str],
    host_of_rank: Sequence[int],
    *,
    environ: Mapping[str, str],
    log_dir: Path,
    prepare: Callable[[int], Callable[[], None]],
) -> tuple[Rank, ...]:
    """Start one process for each rank. Output goes to ``log_dir``/ranks/attempt_0/RANK/std{out,err}.log.

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
    """Send SIGTERM to those that run, and SIGKILL to those that still run after ``grace_s``."""
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
    """Report the ranks that ended with an error, ``first`` apart, in torchrun's form, which launch/ends/cell.py reads."""
    failed = [r for r in ranks if r.process.returncode]
    rule = "=" * 60
    blocks = [_failed_rank_block(index, rank) for index, rank in enumerate(r for r in failed if r is not first)]
    return "\n".join(
        [rule, "Failures:", *(blocks or ["  <NO_OTHER_FAILURES>"]), "-" * 60,
         "Root Cause (first observed failure):", _failed_rank_block(0, first), rule]
    )  # fmt: skip


def _failed_rank_block(index: int, rank: Rank) -> str:
    """Write how one rank ended, as torchrun writes it."""
    return (
        f"[{index}]:\n"
        f"  host      : host{rank.host}\n"
        f"  rank      : {rank.rank} (local_rank: {rank.local_rank})\n"
        f"  exitcode  : {rank.process.returncode} (pid: {rank.process.pid})"
    )


ROOT, ROOTLESS = "root", "rootless"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def command(network: str, *, parent: int) -> list[str]:
    """Return the command line that makes ``network`` for a look and ends, as a child of ``parent``. Pure."""
    return [sys.executable, "-m", "stepscope.launch.netns.world", "--network", network, "--parent", str(parent)]


def command_of_ranks(
    network: str, *, parent: int, world_size: int, log_dir: Path, error_file: Path, argv: Sequence[str]
) -> list[str]:
    """Return the command line that runs ``argv`` as ``world_size`` ranks in ``network``. Pure."""
    return [
        *command(network, parent=parent),
        "--world-size", str(world_size), "--log-dir", str(log_dir), "--error-file", str(error_file), "--", *argv,
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks; return their exit code, 143 and so on when told to stop, 3 when there can be no such network."""
    asked = _option_parser().parse_args(arguments)
    # Blocked and waited for: a signal never finds a network half made or a rank half started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGCHLD})

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(signal.SIGKILL, parent=owner)

    owner, parent = os.getpid(), asked.parent or os.getppid()
    network = parse_network(asked.network)
    try:
        with built(network, hosts_for(network, asked.world_size), prepare=prepare) as world:
            # Entering a user namespace forgets whom to die with.
            die_with_parent(signal.SIGTERM, parent=parent)
            if not asked.argv:
                sys.stdout.write(f"{ROOTLESS if world.rootless else ROOT}\n")
                return ExitCode.OK
            placement = host_of_ranks(network, asked.world_size)
            return _run_ranks(world, asked.argv, placement, log_dir=asked.log_dir, prepare=prepare)
    except StepscopeError as error:
        sys.stderr.write(f"{error}\n" if asked.argv else f"{error.line}\n")
        if asked.error_file is not None:
            # Loaded only when there is something to say: this process is on the way to the first step of every group.
            from stepscope.launch.ends.cell import leave_word

            leave_word(asked.error_file, error, error.line)
        return error.exit_code


def _run_ranks(
    world: World, argv: Sequence[str], host_of_rank: Sequence[int], *, log_dir: Path, prepare: Callable[[], None]
) -> int:
    """Run ARGV as ranks on the hosts; return the exit code."""

    def on_host(host: int) -> Callable[[], None]:
        """Return what a child calls to be on a host."""
        enter = entering(world.hosts[host])

        def ready() -> None:
            enter()
            prepare()

        return ready

    environ = dict(os.environ)
    ranks = start_ranks(argv, host_of_rank, environ=environ, log_dir=log_dir, prepare=on_host)
    try:
        return _wait_for_ranks(ranks, world)
    finally:
        end_ranks(ranks)


def _wait_for_ranks(ranks: Sequence[Rank], world: World) -> int:
    """Wait until all ranks have ended well, or one has not."""
    while True:
        if world.router is not None and world.router.poll() is not None:
            raise MissingError(
                f"the router of the emulated network ended (exit code {world.router.returncode})",
                why="without it no packet arrives",
                fix="see the launcher's log for what it wrote",
            )
        failed = next((r for r in ranks if r.process.poll()), None)
        if failed is not None:
            end_ranks(ranks)
            sys.stderr.write(failure_report(ranks, failed) + "\n")
            return ExitCode.BUG
        if all(r.process.returncode == 0 for r in ranks):
            return ExitCode.OK
        signum = signal.sigwait({*STOP_SIGNALS, signal.SIGCHLD})
        if signum != signal.SIGCHLD:
            return 128 + signum


def _option_parser() -> argparse.ArgumentParser:
    """Return the parser of this module's options."""
    parser = argparse.ArgumentParser(
        prog="python -m stepscope.launch.netns.world",
        description="Run ARGV as ranks on the hosts of an emulated network; without ARGV, only make it and end.",
    )
    parser.add_argument("--network", required=True, metavar="RATE[:HOSTS][,delay=TIME][,slow=HOST:RATE]")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--log-dir", type=Path, default=Path())
    parser.add_argument("--error-file", type=Path)
    parser.add_argument("--parent", type=int, help="end with this process, which must be the parent")
    parser.add_argument("argv", nargs="*")
    return parser


if __name__ == "__main__":
    sys.exit(main())
