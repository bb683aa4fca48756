"""Spec of ``gpt``: a Transformer decoder that predicts the next token at every position."""

from __future__ import annotations

from pydantic import Field, model_validator

from stepscope.config.options import OptionsModel
from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads._common import (
    Workload,
    attention_flops,
    linear,
    model_facts,
    norm,
    table,
    transformer_blocks,
)


class Options(OptionsModel):
    d_model: int = Field(default=256, ge=1, description="width of a token's vector")
    n_heads: int = Field(default=4, ge=1, description="attention heads; divides d_model")
    num_layers: int = Field(default=4, ge=1, description="Transformer blocks")
    dim_feedforward: int | None = Field(default=None, ge=1, description="hidden width of a block's MLP; 4 x d_model")
    max_seq_len: int = Field(default=128, ge=1, description="tokens per sample")
    vocab_size: int = Field(default=8192, ge=4, description="rows of the token table and outputs of the head")
    dropout: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="above 0, runs on different numbers of ranks are not comparable",
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> Options:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}")
        return self

    @property
    def feedforward(self) -> int:
        """Hidden width of a block's MLP."""
        return self.dim_feedforward or 4 * self.d_model


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="lm", seq_len=options.max_seq_len, vocab_size=options.vocab_size)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:  # noqa: ARG001 - the options say it all
    """A sample is a sequence of ``max_seq_len`` tokens. Attention counts half because it is causal."""
    layers = [
        table("tokens", options.vocab_size, options.d_model),
        table("positions", options.max_seq_len, options.d_model),
        *transformer_blocks(
            num_layers=options.num_layers,
            d_model=options.d_model,
            dim_feedforward=options.feedforward,
            seq_len=options.max_seq_len,
        ),
        norm("norm", options.d_model),
        linear("head", options.d_model, options.vocab_size, bias=False, positions=options.max_seq_len),
    ]
    attention = attention_flops(
        num_layers=options.num_layers, d_model=options.d_model, seq_len=options.max_seq_len, causal=True
    )
    return model_facts(layers, dtype=dtype, extra_flops=attention)


def label(options: Options) -> str:
    return f"gpt {options.num_layers}x{options.d_model} s{options.max_seq_len}"


WORKLOAD = Workload(
    key="gpt",
    summary="Transformer decoder with causal attention and an output head of its own",
    options=Options,
    needs=needs,
    facts=facts,
    label=label,
)
