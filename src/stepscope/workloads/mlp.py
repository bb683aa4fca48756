"""Spec of ``mlp``: fully connected layers with ReLU between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads._common import Workload, in_pairs, linear, model_facts, piece

HIDDEN = {
    "tiny": (64,),
    "small": (512, 256),
    "base": (4096, 4096, 4096, 4096, 2048, 1024),
    "large": (8192, 8192, 8192, 8192, 4096, 2048),
    "xlarge": (16384, 16384, 16384, 8192, 4096, 2048),
}
"""Hidden widths; the data gives the first and the last (784 and 10 on MNIST and by default)."""


class Options(OptionsModel):
    """Either ``size`` or ``layers``; ``small`` when neither is given."""

    size: Literal["tiny", "small", "base", "large", "xlarge"] | None = Field(
        default=None, description="small when layers is not given either"
    )
    layers: list[Annotated[int, Field(ge=1)]] | None = Field(
        default=None, description="hidden widths, in place of size"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("size") is None and given.get("layers") is None:
            return {**given, "size": "small"}
        return given

    @model_validator(mode="after")
    def _one_of_two(self) -> Options:
        if self.size is not None and self.layers is not None:
            raise ValueError("give size or layers, not both")
        return self

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths between input and output."""
        return HIDDEN[self.size] if self.size is not None else tuple(self.layers or ())


def widths(options: Options, data: InputNeeds) -> tuple[int, ...]:
    """All widths, input and output included; ``data`` must be resolved."""
    if data.num_features is None or data.num_classes is None:
        raise ValueError(f"needs are not resolved: {data}")
    return (data.num_features, *options.hidden, data.num_classes)


def needs(options: Options) -> InputNeeds:  # noqa: ARG001 - the data decides both ends
    return InputNeeds(kind="features")


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:
    sizes = widths(options, data)
    layers = [
        linear(f"layers.{i}", inputs, outputs, cut=cut)
        for i, ((inputs, outputs), cut) in enumerate(zip(pairwise(sizes), in_pairs(len(sizes) - 1), strict=True))
    ]
    pieces = [
        piece([layer], outputs, kept={"none": kept}, autocast=True, batch=kept if layer is layers[0] else None)
        for layer, (inputs, outputs) in zip(layers, pairwise(sizes), strict=True)
        for kept in ({"inputs of linear layers": inputs},)
    ]
    kept = {"none": {"inputs of linear layers": sum(sizes[:-1])}}
    divided = {"inputs of linear layers": sum(sizes[1 : len(layers) : 2])}
    return model_facts(layers, dtype=dtype, pieces=pieces, kept=kept, scores=sizes[-1], divided=divided)


def label(options: Options) -> str:
    return f"mlp {options.size or '-'.join(map(str, options.hidden)) or 'linear'}"


WORKLOAD = Workload(
    key="mlp",
    summary="fully connected layers with ReLU, from laptop size to 0.7 billion parameters",
    options=Options,
    needs=needs,
    facts=facts,
    label=label,
    losses=("ce", "mse"),
)
