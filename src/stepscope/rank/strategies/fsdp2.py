"""torch's ``fully_shard`` over all data parallel ranks."""

from __future__ import annotations

from torch import nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import Session
from stepscope.rank.strategies._sharded import ShardedSession
from stepscope.records.plan import ModelFacts
from stepscope.strategies import ShardedOptions


def open(module: nn.Module, mesh: Mesh, options: ShardedOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001
    """Shard ``module`` over all data parallel ranks."""
    return ShardedSession(module, mesh, mesh.device_mesh()["dp"], options, facts.blocks if facts else ())
