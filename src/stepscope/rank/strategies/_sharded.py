"""torch's ``fully_shard`` behind the session protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession
from stepscope.strategies import NARROW, ShardedOptions


class ShardedSession(PlainSession):
    """``fully_shard`` averages over ranks, hence ``loss_factor`` = their number.

    blocks: paths of the modules that are gathered on their own. The module itself changes, for good.
    """

    def __init__(
        self, module: nn.Module, mesh: Mesh, over: DeviceMesh, options: ShardedOptions, blocks: tuple[str, ...]
    ) -> None:
        policy = MixedPrecisionPolicy(
            param_dtype=_narrow_dtype(options.param_dtype),
            reduce_dtype=_narrow_dtype(options.reduce_dtype),
            output_dtype=None,
        )
        offload = CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()
        size = options.blocks_per_unit
        modules = [module.get_submodule(path) for path in blocks]
        units = [modules[i : i + size] for i in range(0, len(modules), size)] if size else []
        for unit in units:
            fully_shard(
                unit,
                mesh=over,
                reshard_after_forward=options.reshard_after_forward,
                mp_policy=policy,
                offload_policy=offload,
            )
        fully_shard(module, mesh=over, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)
        super().__init__(module)
        _set_prefetch([cast(FSDPModule, unit[0]) for unit in units], options)
        self.root = cast(FSDPModule, module)
        self.loss_factor = float(mesh.data_size)

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        self.root.set_requires_gradient_sync(last)
        yield

    def full_parameters(self) -> dict[str, Tensor]:
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return super().full_parameters()


def _narrow_dtype(name: str) -> torch.dtype | None:
    return None if name == "none" else getattr(torch, NARROW[name])


def _set_prefetch(units: list[FSDPModule], options: ShardedOptions) -> None:
    for at, unit in enumerate(units):
        if options.forward_prefetch:
            unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + options.forward_prefetch])
        if options.backward_prefetch > 1:
            unit.set_modules_to_backward_prefetch(units[max(at - options.backward_prefetch, 0) : at][::-1])
