"""What a rank runs of ``sleeping_stack``."""

from __future__ import annotations

import time
from typing import Any

import torch
from sleeping_stack import Options
from torch import nn

from stepscope.rank.workloads._common import LinearStack, Task, class_task
from stepscope.records.plan import InputNeeds


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.seconds = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None, None


class _Stack(LinearStack):
    """Every call sleeps as long, whatever the number of samples."""

    def __init__(self, options: Options) -> None:
        super().__init__(nn.Linear(options.width, options.width, bias=False) for _ in range(options.depth))
        self.seconds = options.forward_ms / 1e3, options.backward_ms / 1e3

    def _apply_layer(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(super()._apply_layer(layer, x), *self.seconds)  # type: ignore[no-any-return, no-untyped-call]


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - every side is the width
    return class_task(_Stack(options), loss)
