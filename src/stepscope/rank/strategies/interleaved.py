"""An asynchronous all-reduce for each parameter, launched the moment its gradient is ready."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import ReadySession, Session, when_ready
from stepscope.records.plan import ModelFacts
from stepscope.strategies import NoOptions


class InterleavedSession(ReadySession):
    def __init__(self, module: nn.Module, mesh: Mesh) -> None:
        super().__init__(module, mesh)
        self.hooks = [when_ready(p, self._launch) for p in self.parameters]

    def _launch(self, parameter: Tensor) -> None:
        if self.reducing:
            self.works.append(dist.all_reduce(parameter.grad, group=self.group, async_op=True))

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()


def open(module: nn.Module, mesh: Mesh, options: NoOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Reduce each gradient on its own while the backward pass goes on."""
    return InterleavedSession(module, mesh)
