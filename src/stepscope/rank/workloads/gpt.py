"""Implementation of ``gpt``."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from stepscope.rank.workloads._common import Piece, Task, Transformer, sequence_task
from stepscope.records.plan import InputNeeds
from stepscope.workloads.gpt import Options


class Gpt(Transformer):
    """Token ids [n, s] -> scores of the next token [n, s, vocab_size]."""

    def __init__(self, options: Options) -> None:
        super().__init__(options, outputs=options.vocab_size, activation=F.gelu, causal=True, head_bias=False)
        if options.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encode(tokens))  # type: ignore[no-any-return]

    def pieces(self) -> list[Piece]:
        """Return a piece for each block; the tables go with the first one, norm and head with the last."""
        parts = [Piece((block,), block) for block in self.blocks]
        parts[0] = Piece((self.tokens, self.positions, self.blocks[0]), lambda x: self.blocks[0](self.embed(x)))
        last = parts[-1]
        parts[-1] = Piece((*last.modules, self.norm, self.head), lambda x: self.head(self.norm(last.forward(x))))
        return parts


def build(options: Options, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - the options say it all
    if loss != "ce":
        raise ValueError(f"unknown loss {loss!r}")
    return sequence_task(Gpt(options))
