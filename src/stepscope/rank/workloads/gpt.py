"""Implementation of ``gpt``."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import INIT_STD, Block, Task, init_linear, sequence_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.gpt import Options


class Gpt(nn.Module):
    """Token ids [n, s] -> scores of the next token [n, s, vocab_size]; the head has its own weights."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.d_model)
        self.positions = nn.Embedding(options.max_seq_len, options.d_model)
        self.blocks = nn.ModuleList(
            Block(
                d_model=options.d_model,
                n_heads=options.n_heads,
                dim_feedforward=options.feedforward,
                num_layers=options.num_layers,
                activation=F.gelu,
                causal=True,
                dropout=options.dropout,
            )
            for _ in range(options.num_layers)
        )
        self.norm = nn.LayerNorm(options.d_model)
        self.head = nn.Linear(options.d_model, options.vocab_size, bias=False)
        nn.init.normal_(self.tokens.weight, std=INIT_STD)
        nn.init.normal_(self.positions.weight, std=INIT_STD)
        init_linear(self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - the options say it all
    if loss != "ce":
        raise ValueError(f"unknown loss {loss!r}")
    return sequence_task(Gpt(options))
