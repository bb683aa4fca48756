"""This process's place in the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Rank, world size, device and the process group that gradients travel on (None: the default group)."""

    rank: int
    world_size: int
    device: torch.device
    backend: str
    group: ProcessGroup | None = None
