"""Implementation of ``mlp``."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import Task, class_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.mlp import Options, widths


class Mlp(nn.Module):
    """[n, features] -> [n, classes]: linear layers with ReLU between them, torch's default initial weights."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(cast(nn.Linear, self.layers[0]).weight.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x


def build(options: Options, needs: InputNeeds, loss: str) -> Task:
    return class_task(Mlp(widths(options, needs)), loss)
