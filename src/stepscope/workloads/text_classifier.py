"""Spec of ``text_classifier``: a Transformer encoder that reads token ids and answers with a class."""

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
    d_model: int = Field(default=128, ge=1, description="width of a token's vector")
    n_heads: int = Field(default=4, ge=1, description="attention heads; divides d_model")
    num_layers: int = Field(default=2, ge=1, description="Transformer blocks")
    dim_feedforward: int = Field(default=256, ge=1, description="hidden width of a block's MLP")
    max_seq_len: int = Field(default=128, ge=1, description="tokens per text; longer ones are cut, shorter padded")
    vocab_size: int = Field(default=20000, ge=4, description="rows of the token table, padding and unknown included")
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


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="tokens", seq_len=options.max_seq_len, vocab_size=options.vocab_size)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:
    """Dense count: padding costs what real tokens cost, as it does in the module."""
    if data.num_classes is None:
        raise ValueError(f"needs are not resolved: {data}")
    layers = [
        table("tokens", options.vocab_size, options.d_model),
        table("positions", options.max_seq_len, options.d_model),
        *transformer_blocks(
            num_layers=options.num_layers,
            d_model=options.d_model,
            dim_feedforward=options.dim_feedforward,
            seq_len=options.max_seq_len,
        ),
        norm("norm", options.d_model),
        linear("head", options.d_model, data.num_classes),
    ]
    attention = attention_flops(
        num_layers=options.num_layers, d_model=options.d_model, seq_len=options.max_seq_len, causal=False
    )
    return model_facts(layers, dtype=dtype, extra_flops=attention)


def label(options: Options) -> str:
    return f"text_classifier {options.num_layers}x{options.d_model} s{options.max_seq_len}"


WORKLOAD = Workload(
    key="text_classifier",
    summary="Transformer encoder with mean pooling and a class head",
    options=Options,
    needs=needs,
    facts=facts,
    label=label,
)
