"""Implementation of ``text_classifier``."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import INIT_STD, Block, Task, class_task, init_linear
from stepscope.records.plan import InputNeeds
from stepscope.workloads.text_classifier import Options

PADDING = 0


class TextClassifier(nn.Module):
    """Token ids [n, s], 0 = padding -> class scores [n, classes]. The mean over real tokens is classified."""

    def __init__(self, options: Options, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.d_model)
        self.positions = nn.Embedding(options.max_seq_len, options.d_model)
        self.blocks = nn.ModuleList(
            Block(
                d_model=options.d_model,
                n_heads=options.n_heads,
                dim_feedforward=options.dim_feedforward,
                num_layers=options.num_layers,
                activation=F.relu,
                causal=False,
                dropout=options.dropout,
            )
            for _ in range(options.num_layers)
        )
        self.norm = nn.LayerNorm(options.d_model)
        self.head = nn.Linear(options.d_model, num_classes)
        nn.init.normal_(self.tokens.weight, std=INIT_STD)
        nn.init.normal_(self.positions.weight, std=INIT_STD)
        init_linear(self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != PADDING  # [n, s]
        # a row of nothing but padding attends to all of it: softmax over no position at all would be NaN
        attend = real | ~real.any(dim=1, keepdim=True)
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, attend[:, None, None, :])
        x = self.norm(x)  # [n, s, d]
        weight = attend.to(x.dtype)
        pooled = (x * weight[:, :, None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
        return self.head(pooled)  # type: ignore[no-any-return]


def build(options: Options, needs: InputNeeds, loss: str) -> Task:
    if needs.num_classes is None:
        raise ValueError(f"needs are not resolved: {needs}")
    return class_task(TextClassifier(options, needs.num_classes), loss)
