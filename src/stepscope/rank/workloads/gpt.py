"""Implementation of ``gpt``."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import Task, Transformer, sequence_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.gpt import Options


class Gpt(Transformer):
    """Token ids [n, s] -> scores of the next token [n, s, vocab_size]; the head has its own weights."""

    def __init__(self, options: Options) -> None:
        super().__init__(options, outputs=options.vocab_size, activation=F.gelu, causal=True, head_bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encode(tokens))  # type: ignore[no-any-return]


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - the options say it all
    if loss != "ce":
        raise ValueError(f"unknown loss {loss!r}")
    return sequence_task(Gpt(options))
