"""The whole backward pass first, then one blocking all-reduce after the other."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session, flat_with_views
from stepscope.records.plan import ModelFacts
from stepscope.strategies.naive import NaiveOptions


class NaiveSession(PlainSession):
    def __init__(self, module: nn.Module, mesh: Mesh) -> None:
        super().__init__(module)
        self.group = mesh.group

    def finish(self) -> None:
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad, group=self.group)


class FlatSession(PlainSession):
    """The same with all gradients in one tensor, made once: a single large all-reduce (per dtype)."""

    def __init__(self, module: nn.Module, mesh: Mesh) -> None:
        super().__init__(module)
        self.group = mesh.group
        self.flats: list[Tensor] = []
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            parameters = [p for p in self.parameters if p.dtype == dtype]
            flat, views = flat_with_views(parameters)
            for parameter, view in zip(parameters, views, strict=True):
                parameter.grad = view
            self.flats.append(flat)

    def finish(self) -> None:
        for flat in self.flats:
            dist.all_reduce(flat, group=self.group)

    def zero_grad(self) -> None:
        for flat in self.flats:
            flat.zero_()


def open(module: nn.Module, mesh: Mesh, options: NaiveOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Reduce after backward, parameter by parameter or (``flat``) in one piece."""
    return FlatSession(module, mesh) if options.flat else NaiveSession(module, mesh)
