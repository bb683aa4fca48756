"""Implementation of ``deep_mlp``."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import Task, class_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.deep_mlp import Options


class DeepMlp(nn.Module):
    """[n, width] -> [n, width]: ``depth`` linear layers with ReLU between them."""

    def __init__(self, *, depth: int, width: int, bias: bool) -> None:
        super().__init__()
        layers = [nn.Linear(width, width, bias=bias) for _ in range(depth)]
        for layer in layers:
            # He et al. 2015. torch's default shrinks the signal 2.4x a layer: after 40 layers gradients would be
            # denormal numbers, which are slow on a CPU and zero in half precision.
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(cast(nn.Linear, self.layers[0]).weight.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - every side is the width
    return class_task(DeepMlp(depth=options.depth, width=options.width, bias=options.bias), loss)
