"""This process's place among the ranks, and the process groups of the dimensions they are arranged in.

``reset`` gives each cell of a group a clean slate: the same losses whatever ran before it.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stepscope.core.dataclass import record
from stepscope.records import mesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@record
class Mesh:
    """Rank, world size, device and shape (records/mesh.py: empty means that all ranks are data parallel).

    group: of all ranks; None: the default one.
    """

    rank: int
    world_size: int
    device: torch.device
    backend: str
    group: ProcessGroup | None = None
    shape: Mapping[str, int] = field(default_factory=dict)

    def shaped(self, shape: Mapping[str, int]) -> Mesh:
        """Return the same ranks arranged as ``shape``."""
        return replace(self, shape=shape)

    def size(self, dimension: str) -> int:
        return mesh.size(self.shape, self.world_size, dimension)

    @property
    def coordinates(self) -> dict[str, int]:
        return mesh.coordinates(self.shape, self.world_size, self.rank)

    @property
    def data_size(self) -> int:
        """Number of data shards: ranks that differ in another dimension only train on the same samples."""
        return self.size("dp")

    @property
    def data_rank(self) -> int:
        """This rank's data shard."""
        index = 0
        for name, at in self.coordinates.items():
            if name in mesh.DATA:
                index = index * mesh.full(self.shape, self.world_size)[name] + at
        return index

    @property
    def counts(self) -> bool:
        """True on the one rank of each data shard whose samples and loss count: the last stage has the loss."""
        at = self.coordinates
        return at.get("tp", 0) == 0 and at.get("pp", 0) == self.size("pp") - 1

    def device_mesh(self) -> DeviceMesh:
        """Return torch's mesh of this shape, with its names. All ranks make it together; made once."""
        full = mesh.full(self.shape, self.world_size)
        return _device_mesh(self.device.type, tuple(full), tuple(full.values()))

    def group_of(self, dimension: str) -> ProcessGroup:
        """Return the ranks that differ from this one in ``dimension`` alone; ``world``: all."""
        if dimension == mesh.WORLD or not self.shape:
            return self.group or dist.group.WORLD  # type: ignore[return-value]
        return self.device_mesh().get_group(dimension)

    def group_names(self) -> dict[str, str]:
        """Map torch's name of each group of the mesh to its dimension."""
        if not self.shape:
            return {self.group_of("dp").group_name: "dp"}
        return {self.group_of(name).group_name: name for name in (mesh.WORLD, *self.shape)}


@lru_cache
def _device_mesh(device: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device, sizes, mesh_dim_names=names)


def reset(device: torch.device, *, seed: int, threads: int, cudnn_benchmark: bool) -> None:
    """Reset random states, default dtype, threads, backend flags, garbage, the CUDA allocator."""
    gc.collect()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
