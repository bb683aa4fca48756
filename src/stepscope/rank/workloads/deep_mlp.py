"""Implementation of ``deep_mlp``."""

from __future__ import annotations

from torch import nn

from stepscope.rank.workloads._common import LinearStack, Task, class_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.deep_mlp import Options


class DeepMlp(LinearStack):
    """[n, width] -> [n, width]: ``depth`` linear layers."""

    def __init__(self, *, depth: int, width: int, bias: bool) -> None:
        layers = [nn.Linear(width, width, bias=bias) for _ in range(depth)]
        for layer in layers:
            # He et al. 2015. torch's default shrinks the signal 2.4x a layer: after 40 layers gradients would be
            # denormal numbers, which are slow on a CPU and zero in half precision.
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        super().__init__(layers)


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - every side is the width
    return class_task(DeepMlp(depth=options.depth, width=options.width, bias=options.bias), loss)
