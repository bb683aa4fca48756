"""The whole backward pass first, then one blocking all-reduce after the other."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import FlatSession, PlainSession, Session
from stepscope.records.plan import ModelFacts
from stepscope.strategies.naive import NaiveOptions


class NaiveSession(PlainSession):
    def __init__(self, module: nn.Module, mesh: Mesh) -> None:
        super().__init__(module)
        self.group = mesh.group

    def finish(self) -> None:
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad, group=self.group)


def open(module: nn.Module, mesh: Mesh, options: NaiveOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Reduce after backward, parameter by parameter or (``flat``) in one piece."""
    return FlatSession(module, mesh.group) if options.flat else NaiveSession(module, mesh)
