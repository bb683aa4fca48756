"""A model whose layers take a fixed time and no processor: as many ranks as one likes compute at once on any machine."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.seconds = backward_s
        time.sleep(forward_s)
        return x + weight[0, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        time.sleep(ctx.seconds)
        return gradients[0], torch.zeros_like(weight), None, None


class Layer(nn.Module):
    """One weight of ``width`` x ``width``; milliseconds of both passes."""

    def __init__(self, width: int, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        self.seconds = forward_ms / 1e3, backward_ms / 1e3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(x, self.weight, *self.seconds)  # type: ignore[no-any-return, no-untyped-call]


def build(layers: int = 12, width: int = 512, forward_ms: float = 5.0, backward_ms: float = 10.0) -> dict[str, object]:
    """``layers`` such layers, gradients of 4 * width^2 bytes each."""

    def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 4, generator=generator), torch.randint(4, (size,), generator=generator)

    module = nn.Sequential(nn.Linear(4, 4), *(Layer(width, forward_ms, backward_ms) for _ in range(layers)))
    return {"module": module, "batch": batch}
