"""The protocol between a strategy and the train loop, and what the strategies share.

torch's DistributedDataParallel behind the session protocol, for the strategies that are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp
from stepscope.strategies.ddp import DdpOptions
from stepscope.strategies.zero1 import Zero1Options


class Scheduled(Protocol):
    """Runs forward and backward pass of a micro-batch, interleaved as a schedule wants it."""

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        scale: float,
        autocast: Callable[[], AbstractContextManager[Any]],
        mark: Callable[[int], None],
    ) -> Tensor:
        """Return the sum of the samples' losses, 0 where another rank has it. scale: what it is multiplied by for the
        gradients."""
        ...


class Session(Protocol):
    """One open strategy around one module, for the life of a cell.

    The train loop, for each optimizer step::

        for every micro-step:
            with session.micro_step(last=...):          # reductions may start only when last
                loss = sum(sample losses) / global samples of the window * session.loss_factor
                loss.backward()
        session.finish()        # on return every param.grad holds the sum over ranks, usable by the optimizer
        optimizer.step()
        session.zero_grad()

    trainable: call this for the forward pass (the module or its wrapper).
    loss_factor: 1 when gradients are summed over ranks, number of data shards when the strategy averages them (DDP).
    parameters: what the optimizer updates on this rank: shards where the strategy shards them.
    model_part: ranks with the same one hold the same whole parameters (a pipeline: the stage).
    scheduled: makes a micro-step's forward and backward pass by itself, in place of ``trainable`` and ``backward``.
    counts: whether the loss is on this rank; None: ``Mesh.counts`` knows. messages: sends and receives of the last step.
    """

    trainable: nn.Module
    loss_factor: float
    parameters: list[nn.Parameter]
    model_part: int
    counts: bool | None

    @property
    def scheduled(self) -> Scheduled | None: ...

    @property
    def messages(self) -> Sequence[ObservedOp]: ...

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]: ...

    def finish(self) -> None: ...

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to ``max_norm``, the norm of the whole model's, between ``finish`` and the optimizer."""
        ...

    def zero_grad(self) -> None: ...

    def optimizer(self, kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
        """Return ``kind(parameters, **options)``, or what the strategy makes of it."""
        ...

    def full_parameters(self) -> dict[str, Tensor]:
        """Return the whole parameters of this rank's part of the model by name. All ranks call it together, outside a
        step."""
        ...

    def full_gradients(self) -> dict[str, Tensor]:
        """Return their whole gradients, those that there are, between ``finish`` and ``zero_grad``. All ranks call it
        together."""
        ...

    def close(self) -> None:
        """Remove hooks and wrappers; the module is plain again, unless the spec says ``sharded``."""
        ...


class PlainSession:
    """The module as it is, no communication: what the other sessions start from."""

    model_part = 0
    scheduled: Scheduled | None = None
    counts: bool | None = None
    messages: Sequence[ObservedOp] = ()

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.trainable = module
        self.loss_factor = 1.0
        self.parameters = trainable_parameters(module)

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        del last
        return nullcontext()

    def finish(self) -> None:
        """Do nothing: gradients are ready when backward returns."""

    def clip(self, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, max_norm)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def optimizer(self, kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
        return kind(self.parameters, **options)

    def full_parameters(self) -> dict[str, Tensor]:
        return {name: whole(p.detach()) for name, p in self.module.named_parameters()}

    def full_gradients(self) -> dict[str, Tensor]:
        gradients = ((name, p.grad) for name, p in self.module.named_parameters())
        return {name: whole(gradient) for name, gradient in gradients if gradient is not None}

    def close(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def clip_over(
    parameters: Sequence[nn.Parameter], max_norm: float, group: dist.ProcessGroup | None, *, ranks: int
) -> None:
    """Clip gradients that the ``ranks`` of ``group`` hold in parts: divided ones (DTensor), and whole ones on every rank.

    Squares of what a rank holds are summed over the group; what several ranks hold counts once.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    wide = torch.float64 if parameters[0].dtype == torch.float64 else torch.float32
    total = torch.zeros(1, dtype=wide, device=parameters[0].device)
    for gradient, part in zip(gradients, local, strict=True):
        total += part.to(wide).square().sum() * _gradient_parts(gradient) / ranks
    dist.all_reduce(total, group=group)
    factor = torch.clamp(max_norm / (total.sqrt() + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for part in local:
        part.mul_(factor.to(part.dtype))


def _gradient_parts(gradient: Tensor) -> int:
    """Count the ranks over which the gradient is divided."""
    if not isinstance(gradient, DTensor):
        return 1
    placed = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
    return prod(size for placement, size in placed if not placement.is_replicate())


def whole(tensor: Tensor) -> Tensor:
    """Return ``tensor``, gathered where its shards lie on several ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get a gradient, in registration order, each once."""
    return [p for p in module.parameters() if p.requires_grad]


def when_ready(parameter: nn.Parameter, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``hook(parameter)`` whenever backward has accumulated its gradient."""
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return handle


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``: the names that plans use."""
    return str(dtype).removeprefix("torch.")


def flat_with_views(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """Return one zeroed tensor for the gradients of ``parameters`` (all of one dtype), and each one's view of it.

    Autograd accumulates in place into a gradient that is such a view, so reducing the flat tensor reduces them
    all without a copy.
    """
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
    views = []
    offset = 0
    for parameter in parameters:
        views.append(flat[offset : offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()
    return flat, views


class ReadySession(PlainSession):
    """Reduces gradients as they become ready: from ``hooks``, while ``reducing``, which is in the last micro-step."""

    def __init__(self, module: nn.Module, mesh: Mesh) -> None:
        super().__init__(module)
        self.group = mesh.group
        self.reducing = False
        self.works: list[dist.Work] = []
        self.hooks: list[RemovableHandle] = []

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        self.reducing = last
        yield

    def remove_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def close(self) -> None:
        self.remove_hooks()
        super().close()


class FlatSession(PlainSession):
    """All gradients in one tensor, made once: a single large all-reduce (per dtype) when backward is through."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        super().__init__(module)
        self.group = group
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


class DdpSession(PlainSession):
    """DDP averages over ranks, hence ``loss_factor`` = their number; its backward returns with buckets reduced."""

    def __init__(
        self, module: nn.Module, mesh: Mesh, options: DdpOptions | Zero1Options, *, static_graph: bool = False
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
