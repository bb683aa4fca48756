"""Flat buckets of gradients, reduced while the backward pass still runs; gradients live in the buckets.

The first step learns in which order gradients become ready. From then on each parameter's ``grad`` is a view of
a bucket, a hook counts down the gradients that a bucket still misses, and a full bucket is launched as soon as
all buckets before it are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import ReadySession, Session, dtype_name, flat_with_views, when_ready
from stepscope.records.plan import ModelFacts
from stepscope.strategies import assign_buckets, bucket_bytes
from stepscope.strategies.bucketed import BucketedOptions


@dataclass(slots=True)
class Bucket:
    """A bucket of gradients. flat: those of ``size`` parameters end to end. missing: how many of them are not ready yet."""

    flat: Tensor
    size: int
    missing: int


class BucketedSession(ReadySession):
    def __init__(self, module: nn.Module, mesh: Mesh, *, cap_bytes: int) -> None:
        super().__init__(module, mesh)
        self.device = mesh.device
        self.cap_bytes = cap_bytes
        self.ready_order: list[int] = []
        self.buckets: list[Bucket] = []
        self.hooks = [when_ready(p, partial(self._learn, index)) for index, p in enumerate(self.parameters)]

    def finish(self) -> None:
        """Launch what is left, and wait for all buckets."""
        if not self.buckets:
            self._build(self._agreed_order())
        # Left over here: everything in the first step, and buckets of parameters that this step did not use.
        while len(self.works) < len(self.buckets):
            self._launch_next()
        for work, bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            bucket.missing = bucket.size
        self.works.clear()

    def zero_grad(self) -> None:
        for bucket in self.buckets:
            bucket.flat.zero_()

    def _learn(self, index: int, _: Tensor) -> None:
        if self.reducing:
            self.ready_order.append(index)

    def _count_down(self, bucket: Bucket, _: Tensor) -> None:
        if not self.reducing:
            return
        bucket.missing -= 1
        while len(self.works) < len(self.buckets) and self.buckets[len(self.works)].missing == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[len(self.works)]
        self.works.append(dist.all_reduce(bucket.flat, group=self.group, async_op=True))

    def _agreed_order(self) -> list[int]:
        """Return rank 0's order of readiness, unused parameters last: all ranks must fill the same buckets."""
        seen = set(self.ready_order)
        unused = [i for i in range(len(self.parameters)) if i not in seen]
        order = torch.tensor([*self.ready_order, *unused], device=self.device)
        dist.broadcast(order, group=self.group, group_src=0)
        return [int(i) for i in order.tolist()]

    def _build(self, order: Sequence[int]) -> None:
        """Make the buckets, move the gradients of the first step into them and count down from now on."""
        self.remove_hooks()
        sizes = [(dtype_name(p.dtype), p.numel() * p.element_size()) for p in self.parameters]
        for indices in assign_buckets(sizes, order=order, caps_bytes=[self.cap_bytes]):
            members = [self.parameters[i] for i in indices]
            flat, views = flat_with_views(members)
            bucket = Bucket(flat=flat, size=len(members), missing=len(members))
            self.buckets.append(bucket)
            for parameter, view in zip(members, views, strict=True):
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
                parameter.grad = view
                self.hooks.append(when_ready(parameter, partial(self._count_down, bucket)))


def open(module: nn.Module, mesh: Mesh, options: BucketedOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Reduce flat buckets of ``bucket_cap_mb`` while the backward pass goes on."""
    return BucketedSession(module, mesh, cap_bytes=bucket_bytes(options.bucket_cap_mb))
