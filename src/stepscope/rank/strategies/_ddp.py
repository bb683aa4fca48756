"""torch's DistributedDataParallel behind the session protocol, for the strategies that are made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession
from stepscope.strategies.ddp import DdpOptions
from stepscope.strategies.zero1 import Zero1Options


class DdpSession(PlainSession):
    """DDP averages over ranks, hence ``loss_factor`` = their number; its backward returns with buckets reduced."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        options: DdpOptions | Zero1Options,
        *,
        static_graph: bool = False,
    ) -> None:
        super().__init__(module)
        self.ddp = DistributedDataParallel(
            module,
            device_ids=[mesh.device.index] if mesh.device.type == "cuda" else None,
            process_group=mesh.group,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=static_graph,
        )
        # Our workloads' buffers are constants: without this DDP broadcasts them in every forward pass. The
        # constructor's argument has another name in each torch version, the attribute has not.
        self.ddp.broadcast_buffers = False
        self.trainable = self.ddp
        self.loss_factor = float(mesh.data_size)

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self.ddp.no_sync():
                yield

    def close(self) -> None:
        self.ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        super().close()
