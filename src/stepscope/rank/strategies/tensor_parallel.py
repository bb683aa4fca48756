"""torch's ``parallelize_module`` by the workload's plan, and ``fully_shard`` over the replicas."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.optim import Optimizer

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session, clip_over
from stepscope.rank.strategies._sharded import ShardedSession
from stepscope.records.mesh import WORLD
from stepscope.records.plan import ModelFacts, ParallelPlan
from stepscope.strategies import ShardedOptions
from stepscope.strategies.tensor_parallel import TensorParallelOptions


def styles(plan: ParallelPlan, options: TensorParallelOptions) -> dict[str, ParallelStyle]:
    """Return torch's style of each module of the plan."""
    between = Shard(1) if options.sequence_parallel else Replicate()
    by_module: dict[str, ParallelStyle] = {}
    for module in plan.modules:
        if module.style == "column":
            by_module[module.name] = ColwiseParallel(input_layouts=between)
        elif module.style == "row":
            by_module[module.name] = RowwiseParallel(output_layouts=between)
        elif module.style == "table":
            by_module[module.name] = RowwiseParallel(input_layouts=Replicate())
        elif module.style == "head":
            by_module[module.name] = ColwiseParallel(
                input_layouts=between,
                output_layouts=Shard(-1) if options.loss_parallel else Replicate(),
                use_local_output=not options.loss_parallel,
            )
        elif options.sequence_parallel:
            by_module[module.name] = SequenceParallel(use_local_output=True)
    if options.sequence_parallel and plan.split_at is not None:
        by_module[plan.split_at] = PrepareModuleInput(
            input_layouts=(Replicate(), None), desired_input_layouts=(Shard(1), None), use_local_output=True
        )
    return by_module


class NeverEmpty(nn.Module):
    """The module for a rank whose share of a micro-step may have no samples: torch divides empty activations in other ways,
    with other collectives, so one sample of zeros stands in and its outputs are dropped."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x) if len(x) else self.module(x.new_zeros(1, *x.shape[1:]))[:0]


class TensorParallelSession(PlainSession):
    """Ranks of one group train on the same samples, so that gradients are complete without a sum over them."""

    def __init__(self, module: nn.Module, mesh: Mesh, options: TensorParallelOptions, facts: ModelFacts) -> None:
        assert facts.tensor_parallel is not None
        over = mesh.device_mesh()
        # A divided layer's output is a view, which this train loop never changes in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        parallelize_module(module, over["tp"], styles(facts.tensor_parallel, options))
        for tied in (part for part in facts.tensor_parallel.modules if part.tied is not None):
            # torch divides each use of a weight by itself: both are divided by rows, and become one again
            module.get_submodule(tied.name).weight = module.get_parameter(str(tied.tied))
        self.replica = (
            ShardedSession(module, mesh, over["dp"], ShardedOptions(), facts.blocks)
            if mesh.data_size > 1
            else PlainSession(module)
        )
        super().__init__(module)
        self.trainable = NeverEmpty(module) if mesh.data_size > 1 else module
        self.loss_factor = self.replica.loss_factor
        self.mesh = mesh
        self.options = options

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        with loss_parallel() if self.options.loss_parallel else nullcontext(), self.replica.micro_step(last=last):
            yield

    def full_parameters(self) -> dict[str, Tensor]:
        return self.replica.full_parameters()

    def finish(self) -> None:
        """Sum the gradients of norms that saw a share of the positions: an optimizer would do so at each use of them."""
        for parameter in self.parameters:
            if isinstance(parameter.grad, DTensor):
                assert isinstance(parameter, DTensor)
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)

    def clip(self, max_norm: float) -> None:
        """Clip over all ranks at once: torch clips no mixture of whole and divided gradients."""
        dp = self.mesh.data_size
        group = self.mesh.group_of(WORLD if dp > 1 else "tp")
        clip_over(self.parameters, max_norm, group, ranks=self.mesh.world_size)

    def optimizer(self, kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
        """Make the optimizer with a group for whole parameters and one for divided ones: torch's multi-tensor updates take
        no mixture."""
        groups: dict[object, list[nn.Parameter]] = {}
        for parameter in self.parameters:
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        return kind([{"params": group} for group in groups.values()], **options)


def open(  # noqa: A001
    module: nn.Module, mesh: Mesh, options: TensorParallelOptions, facts: ModelFacts | None = None
) -> Session:
    """Divide ``module`` as ``facts`` say."""
    assert facts is not None
    return TensorParallelSession(module, mesh, options, facts)
