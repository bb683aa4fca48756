"""Implementation of ``text_classifier``."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import Task, Transformer, class_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.text_classifier import Options

PADDING = 0


class TextClassifier(Transformer):
    """Token ids [n, s], 0 = padding -> class scores [n, classes]. The mean over real tokens is classified."""

    def __init__(self, options: Options, num_classes: int) -> None:
        super().__init__(options, outputs=num_classes, activation=F.relu, causal=False, head_bias=True)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != PADDING  # [n, s]
        # a row of nothing but padding attends to all of it: softmax over no position at all would be NaN
        attend = real | ~real.any(dim=1, keepdim=True)
        x = self.encode(tokens, attend[:, None, None, :])  # [n, s, d]
        weight = attend.to(x.dtype)
        pooled = (x * weight[:, :, None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
        return self.head(pooled)  # type: ignore[no-any-return]


def build(options: Options, needs: InputNeeds, loss: str) -> Task:
    if needs.num_classes is None:
        raise ValueError(f"needs are not resolved: {needs}")
    return class_task(TextClassifier(options, needs.num_classes), loss)
