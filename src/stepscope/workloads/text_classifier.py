"""Spec of ``text_classifier``: a Transformer encoder that reads token ids and answers with a class."""

from __future__ import annotations

from pydantic import Field

from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads._common import TransformerOptions, Workload, linear, transformer_facts


class Options(TransformerOptions):
    dim_feedforward: int = Field(default=256, ge=1, description="hidden width of a block's MLP")
    max_seq_len: int = Field(default=128, ge=1, description="tokens per text; longer ones are cut, shorter padded")
    vocab_size: int = Field(default=20000, ge=4, description="rows of the token table, padding and unknown included")


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="tokens", seq_len=options.max_seq_len, vocab_size=options.vocab_size)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:
    """Return the facts of the model. The count is dense: padding costs what real tokens cost, as it does in the module."""
    if data.num_classes is None:
        raise ValueError(f"needs are not resolved: {data}")
    return transformer_facts(options, linear("head", options.d_model, data.num_classes), dtype=dtype, causal=False)


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
