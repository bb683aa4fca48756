"""torch's ZeroRedundancyOptimizer over DistributedDataParallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import DdpSession, Session
from stepscope.records.plan import ModelFacts
from stepscope.strategies.zero1 import Zero1Options

with warnings.catch_warnings():  # the package uses torch.jit.script, which warns where it is deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


class Zero1Session(DdpSession):
    def __init__(self, module: nn.Module, mesh: Mesh, options: Zero1Options) -> None:
        super().__init__(module, mesh, options)
        self.group = mesh.group_of("dp")
        self.as_bucket_view = options.parameters_as_bucket_view

    def optimizer(self, kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
        """Return the optimizer whose state is divided over the ranks."""
        return ZeroRedundancyOptimizer(
            self.parameters,
            optimizer_class=kind,  # type: ignore[arg-type]
            process_group=self.group,
            parameters_as_bucket_view=self.as_bucket_view,
            **options,
        )


def open(module: nn.Module, mesh: Mesh, options: Zero1Options, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Wrap ``module`` in DistributedDataParallel and deal out its optimizer."""
    return Zero1Session(module, mesh, options)
