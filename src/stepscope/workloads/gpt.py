"""Spec of ``gpt``: a Transformer decoder that predicts the next token at every position."""

from __future__ import annotations

from pydantic import Field

from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads._common import TransformerOptions, Workload, linear, transformer_facts


class Options(TransformerOptions):
    d_model: int = Field(default=256, ge=1, description="width of a token's vector")
    num_layers: int = Field(default=4, ge=1, description="Transformer blocks")
    vocab_size: int = Field(default=8192, ge=4, description="rows of the token table and outputs of the head")
    tied: bool = Field(default=False, description="whether the head's weights are the token table")


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="lm", seq_len=options.max_seq_len, vocab_size=options.vocab_size)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:  # noqa: ARG001 - the options say it all
    """Return the facts of a model whose sample is ``max_seq_len`` tokens. Attention counts half because it is causal."""
    head = linear(
        "head",
        options.d_model,
        options.vocab_size,
        bias=False,
        positions=options.max_seq_len,
        cut="head",
        tied="tokens.weight" if options.tied else None,
    )
    return transformer_facts(options, head, dtype=dtype, causal=True)


def label(options: Options) -> str:
    return f"gpt {options.num_layers}x{options.d_model} s{options.max_seq_len}" + (" tied" if options.tied else "")


WORKLOAD = Workload(
    key="gpt",
    summary="Transformer decoder with causal attention, its output head apart or tied to the token table",
    options=Options,
    needs=needs,
    facts=facts,
    label=label,
)
