"""Implementation of ``mlp``."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from stepscope.rank.workloads._common import LinearStack, Task, class_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.mlp import Options, widths


class Mlp(LinearStack):
    """[n, features] -> [n, classes], torch's default initial weights."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))


def build(options: Options, needs: InputNeeds, loss: str) -> Task:
    return class_task(Mlp(widths(options, needs)), loss)
