"""What a collective's implementation consists of: buffers, the call on them, and what stands where before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stepscope.core.dataclass import record
from stepscope.rank.mesh import Mesh

REDUCED: Literal["reduced"] = "reduced"
"""Source of an element that is the reduction over all ranks."""

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}

# Renamed in torch 2.13, where the old names warn.
all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Waitable(Protocol):
    def wait(self) -> object: ...


class Issue(Protocol):
    """Starts the collective. Blocking: returns when torch's own blocking call does, with nothing to wait for."""

    def __call__(self, *, async_op: bool) -> Waitable | None: ...


@record
class Setup:
    """What decides one exchange. numel: elements of S, as the offline spec counts it.

    allocate: makes a buffer of so many elements; another one than torch's where only their size is asked for.
    """

    mesh: Mesh
    dtype: torch.dtype
    numel: int
    reduce_op: str | None
    in_place: bool
    root: int
    pattern: str | None
    allocate: Callable[..., Tensor] = torch.empty

    @property
    def rank(self) -> int:
        return self.mesh.rank

    @property
    def world_size(self) -> int:
        return self.mesh.world_size

    @property
    def part(self) -> int:
        """Number of elements of one of ``world_size`` equal parts of S."""
        return self.numel // self.mesh.world_size

    @property
    def is_root(self) -> bool:
        return self.mesh.rank == self.root

    def empty(self, numel: int) -> Tensor:
        return self.allocate(numel, dtype=self.dtype, device=self.mesh.device)

    def sent(self, tensor: Tensor) -> tuple[Stretch, ...]:
        """Return what this rank sends."""
        return (Stretch(tensor=tensor, source=self.rank),)

    def torch_op(self) -> dist.ReduceOp:
        return REDUCE_OPS[self.reduce_op or "sum"]  # type: ignore[return-value]


@record
class Stretch:
    """A stretch of a buffer. source, offset: its first element is element ``offset`` of what rank ``source`` sends."""

    tensor: Tensor
    source: int | Literal["reduced"]
    offset: int = 0


@record
class Exchange:
    """One call with buffers of its own.

    inputs: what this rank sends. outputs: what it must hold afterwards, nothing where its result is undefined.
    messages: the same as point-to-point operations, for calls in a group; only of send_recv.
    """

    inputs: tuple[Stretch, ...]
    outputs: tuple[Stretch, ...]
    issue: Issue
    messages: tuple[dist.P2POp, ...] = ()
    is_send_recv: bool = False


def equal_parts(tensor: Tensor, setup: Setup) -> list[Tensor]:
    """Return views of the parts of the ranks in a tensor of S."""
    return [tensor[r * setup.part : (r + 1) * setup.part] for r in range(setup.world_size)]


def from_all(tensor: Tensor, setup: Setup, *, offset: int = 0) -> tuple[Stretch, ...]:
    """Return the pieces of a tensor of S that holds one part of every rank, in rank order."""
    parts = equal_parts(tensor, setup)
    return tuple(Stretch(tensor=part, source=rank, offset=offset) for rank, part in enumerate(parts))


def after_copy(call: Issue, *, source: Tensor, target: Tensor) -> Issue:
    """Return ``call``, out of place unless the two are one tensor: torch only has the form that overwrites its input, so the
    input is copied first."""
    if source is target:
        return call

    def issue(*, async_op: bool) -> Waitable | None:
        target.copy_(source)
        return call(async_op=async_op)

    return issue


def idle(*, async_op: bool) -> Waitable | None:  # noqa: ARG001 - the signature of every call
    """Do nothing, as a rank does that has no part in a call."""
    return None
