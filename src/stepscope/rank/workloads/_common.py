"""What a built workload hands to the train loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A module and its loss. All functions accept an empty batch (first dimension 0).

    loss_sum(output, target): sum over the batch of each sample's loss; for sequences a sample's loss is its mean
        over positions. Shape [].
    correct(output, target): number of right answers (positions / seq_len for sequences), float tensor, shape [].
    """

    module: nn.Module
    loss_sum: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor]
