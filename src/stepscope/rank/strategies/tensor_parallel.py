"""torch's ``parallelize_module`` by the workload's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
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
from stepscope.rank.strategies._common import PlainSession, Session
from stepscope.records.plan import ModelFacts, ParallelPlan
from stepscope.strategies.tensor_parallel import TensorParallelOptions


def styles(plan: ParallelPlan, options: TensorParallelOptions) -> dict[str, ParallelStyle]:
    """torch's style of each module of the plan."""
    between = Shard(1) if options.sequence_parallel else Replicate()
    found: dict[str, ParallelStyle] = {}
    for module in plan.modules:
        if module.style == "column":
            found[module.name] = ColwiseParallel(input_layouts=between)
        elif module.style == "row":
            found[module.name] = RowwiseParallel(output_layouts=between)
        elif module.style == "table":
            found[module.name] = RowwiseParallel(input_layouts=Replicate())
        elif module.style == "head":
            found[module.name] = ColwiseParallel(
                input_layouts=between,
                output_layouts=Shard(-1) if options.loss_parallel else Replicate(),
                use_local_output=not options.loss_parallel,
            )
        elif options.sequence_parallel:
            found[module.name] = SequenceParallel(use_local_output=True)
    if options.sequence_parallel and plan.split_at is not None:
        found[plan.split_at] = PrepareModuleInput(
            input_layouts=(Replicate(), None), desired_input_layouts=(Shard(1), None), use_local_output=True
        )
    return found


class TensorParallelSession(PlainSession):
    """Ranks of one group train on the same samples, so that gradients are complete without a sum over them."""

    def __init__(self, module: nn.Module, mesh: Mesh, options: TensorParallelOptions, plan: ParallelPlan) -> None:
        parallelize_module(module, mesh.device_mesh()["tp"], styles(plan, options))
        super().__init__(module)
        self.options = options

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        del last
        with loss_parallel() if self.options.loss_parallel else nullcontext():
            yield

    def finish(self) -> None:
        """Sum the gradients of norms that saw a share of the positions: an optimizer would do so at each use of them."""
        for parameter in self.parameters:
            if isinstance(parameter.grad, DTensor):
                assert isinstance(parameter, DTensor)
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)

    def optimizer(self, kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
        """With a group for whole parameters and one for divided ones: torch's multi-tensor updates take no mixture."""
        groups: dict[object, list[nn.Parameter]] = {}
        for parameter in self.parameters:
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        return kind([{"params": group} for group in groups.values()], **options)


def open(  # noqa: A001
    module: nn.Module, mesh: Mesh, options: TensorParallelOptions, facts: ModelFacts | None = None
) -> Session:
    """Divide ``module`` as ``facts`` say."""
    assert facts is not None
    assert facts.tensor_parallel is not None
    return TensorParallelSession(module, mesh, options, facts.tensor_parallel)
