"""What all cells of a group share on one rank."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Any

import torch

from stepscope.core.dataclass import dataclass
from stepscope.rank.control import Control
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.startup import RankPlace
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import EpochResult
from stepscope.store.layout import RunLayout


@dataclass(frozen=True, slots=True, kw_only=True)
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
        """What the summary of any cell says of this rank."""
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
