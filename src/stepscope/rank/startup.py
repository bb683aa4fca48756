"""Before the process group starts: signals, scheduler policy, threads, and whether this rank's device exists."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import field
from types import FrameType
from typing import Any

import torch

from stepscope.core.dataclass import dataclass, record
from stepscope.core.errors import MissingError, UsageError
from stepscope.core.words import counted
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.rank.recorder import Terminated
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import EpochResult
from stepscope.store.layout import RunLayout


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where the launcher put this process."""

    rank: int
    local_rank: int
    world_size: int


def read_place(environ: Mapping[str, str]) -> RankPlace:
    """Read RANK, LOCAL_RANK and WORLD_SIZE as torchrun sets them. Raises UsageError naming the one that is wrong."""

    def number(name: str) -> int:
        """Return a variable as a number. Raises UsageError where it is none."""
        text = environ.get(name)
        if text is None or not text.isdigit():
            state = "is not set" if text is None else f"is {text!r}"
            raise UsageError(
                f"{name} {state}",
                why="a rank needs RANK, LOCAL_RANK and WORLD_SIZE",
                fix="start it with torchrun (stepscope bench does), or export them in your launcher",
            )
        return int(text)

    place = RankPlace(number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE"))
    if place.rank >= place.world_size:
        raise UsageError(f"RANK is {place.rank} but WORLD_SIZE is {place.world_size}", fix="check your launcher")
    return place


def pick_device(kind: str, place: RankPlace, environ: Mapping[str, str]) -> torch.device:
    """Return this rank's device; refuses before any process group exists, so that no other rank is left waiting."""
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_rank >= count:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            shown = f"CUDA_VISIBLE_DEVICES={visible!r} shows {counted(count, 'GPU')}"
            why = f"{shown}, and this is local rank {place.local_rank}"
            fix = "unset CUDA_VISIBLE_DEVICES, or list one GPU for every local rank in it"
        else:
            why = f"this host has {counted(count, 'GPU')}, and the launcher started local rank {place.local_rank}"
            fix = "start at most one process per GPU: --nproc-per-node, or --ntasks-per-node=1 with torchrun under srun"
        raise MissingError(f"rank {place.rank}: GPU {place.local_rank} does not exist", why=why, fix=fix)
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def use_batch_scheduling() -> str:
    """Ask for SCHED_BATCH (no privilege needed) and return the policy in force.

    gloo's helper threads preempt the thread that holds the lock under the default policy: small messages take
    5 to 10 times as long. Another policy that this process was started with stays, and ``STEPSCOPE_SCHEDULER=inherit``
    keeps the default one.
    """
    names = {os.SCHED_OTHER: "SCHED_OTHER", os.SCHED_BATCH: "SCHED_BATCH", os.SCHED_FIFO: "SCHED_FIFO",
             os.SCHED_RR: "SCHED_RR", os.SCHED_IDLE: "SCHED_IDLE"}  # fmt: skip
    wanted = os.environ.get("STEPSCOPE_SCHEDULER", "batch")
    if wanted not in ("batch", "inherit"):
        raise UsageError(
            f"STEPSCOPE_SCHEDULER is {wanted!r}", fix="set it to batch (the default) or inherit, or unset it"
        )
    if wanted == "batch" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            return "SCHED_OTHER"
    return names.get(os.sched_getscheduler(0), "unknown")


def install_signals() -> None:
    """SIGTERM ends this rank through its normal clean-up; Ctrl-C is the controller's business."""

    def terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Terminated(f"signal {signal.Signals(signum).name}")

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def leave_undisturbed() -> None:
    """Keep SIGTERM from the main thread, which is on its way out from now on; ``way_out`` still hears it."""
    signal.signal(signal.SIGTERM, lambda *_: None)


@record
class RankContext:
    """What all cells of a group share on this rank."""

    group: GroupSpec
    place: RankPlace
    mesh: Mesh
    control: Control
    pulse: Pulse
    layout: RunLayout
    scheduler_policy: str
    epochs: dict[str, list[EpochResult]] = field(default_factory=dict)  # of the rounds so far, by cell id

    def facts(self) -> dict[str, Any]:
        """Return what the summary of any cell says of this rank."""
        device = self.mesh.device
        return {
            "rank": self.mesh.rank,
            "local_rank": self.place.local_rank,
            "world_size": self.mesh.world_size,
            "host": self.pulse.host,
            "pid": os.getpid(),
            "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "torch_version": str(torch.__version__),
            "scheduler_policy": self.scheduler_policy,
            "num_threads": torch.get_num_threads(),
        }
