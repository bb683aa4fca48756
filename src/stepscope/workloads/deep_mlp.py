"""Spec of ``deep_mlp``: many equal square layers, a long backward pass with one large gradient after the other.

Its ``width`` outputs stand for ``width`` classes, of which the data may use fewer. ``mse`` (the default) regresses
on the label's one-hot vector, ``ce`` takes the outputs as logits; both need the same labels and the same module.
"""

from __future__ import annotations

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads._common import Workload, in_pairs, linear, model_facts, piece


class Options(OptionsModel):
    depth: int = Field(default=40, ge=1, description="number of linear layers")
    width: int = Field(default=4096, ge=2, description="inputs and outputs of every layer")
    bias: bool = Field(default=False, description="whether layers have a bias")


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="features", num_features=options.width, num_classes=options.width)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:  # noqa: ARG001 - every side is the width
    layers = [
        linear(f"layers.{i}", options.width, options.width, bias=options.bias, cut=cut)
        for i, cut in enumerate(in_pairs(options.depth))
    ]
    own = {"inputs of linear layers": options.width}
    pieces = [
        piece([layer], options.width, kept={"none": own}, autocast=True, batch=own if layer is layers[0] else None)
        for layer in layers
    ]
    kept = {"none": {"inputs of linear layers": options.depth * options.width}}
    divided = {"inputs of linear layers": options.depth // 2 * options.width}
    return model_facts(layers, dtype=dtype, pieces=pieces, kept=kept, scores=options.width, divided=divided)


def label(options: Options) -> str:
    return f"deep_mlp {options.depth}x{options.width}"


WORKLOAD = Workload(
    key="deep_mlp",
    summary="depth x width square linear layers with ReLU: large equal gradients, long backward",
    options=Options,
    needs=needs,
    facts=facts,
    label=label,
    losses=("mse", "ce"),
)
