"""torch's DistributedDataParallel behind the session protocol."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import DdpSession, Session
from stepscope.records.plan import ModelFacts
from stepscope.strategies.ddp import DdpOptions


class HookedSession(DdpSession):
    """DDP with what its options add to it."""

    def __init__(self, module: nn.Module, mesh: Mesh, options: DdpOptions) -> None:
        super().__init__(module, mesh, options, static_graph=options.static_graph)
        self.powersgd = _register_hook(self.ddp, mesh, options)
        if options.compile:
            self.trainable = cast(nn.Module, torch.compile(self.ddp))


def _register_hook(ddp: DistributedDataParallel, mesh: Mesh, options: DdpOptions) -> PowerSGDState | None:
    """Register the communication hook; return the state of PowerSGD, None for others."""
    if options.hook == "fp16":
        ddp.register_comm_hook(mesh.group, fp16_compress_hook)
    elif options.hook == "bf16":
        # DDP refuses torch's own on anything but NCCL, and annotations that it cannot compare (ours are strings).
        hook = bf16_compress_hook if mesh.backend == "nccl" else lambda group, bucket: _bf16_hook(group, bucket)
        ddp.register_comm_hook(mesh.group, hook)
    elif options.hook == "powersgd":
        state = PowerSGDState(
            mesh.group,
            matrix_approximation_rank=options.powersgd_rank,
            start_powerSGD_iter=options.powersgd_start_iter,
            orthogonalization_epsilon=1e-8,  # else a matrix whose gradient is zero turns into NaN
        )
        ddp.register_comm_hook(state, powerSGD_hook)
        return state
    return None


def _bf16_hook(group: dist.ProcessGroup | None, bucket: Any) -> torch.futures.Future[Tensor]:
    """Send the bucket in bfloat16: divide first, so that the sum is the average."""
    narrow = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size(group))

    def widen(done: Any) -> Tensor:
        wide: Tensor = bucket.buffer()
        return wide.copy_(done.value()[0])

    work: dist.Work = dist.all_reduce(narrow, group=group, async_op=True)
    return work.get_future().then(widen)


def open(module: nn.Module, mesh: Mesh, options: DdpOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Wrap ``module`` in DistributedDataParallel."""
    return HookedSession(module, mesh, options)
