"""A workload of the benchmarks' own: linear layers that also sleep, so that tensor parallelism and pipelines can cut it."""

from __future__ import annotations

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads import Workload
from stepscope.workloads.deep_mlp import Options as Stack
from stepscope.workloads.deep_mlp import facts as facts_of_stack


class Options(OptionsModel):
    depth: int = Field(default=8, ge=1)
    width: int = Field(default=64, ge=2)
    forward_ms: float = Field(default=10.0, ge=0)
    backward_ms: float = Field(default=20.0, ge=0)


def needs(options: Options) -> InputNeeds:
    return InputNeeds(kind="features", num_features=options.width, num_classes=options.width)


def facts(options: Options, data: InputNeeds, dtype: str) -> ModelFacts:
    return facts_of_stack(Stack(depth=options.depth, width=options.width), data, dtype)


WORKLOAD = Workload(
    key="sleeping_stack",
    summary="square linear layers with ReLU that sleep in both passes",
    options=Options,
    needs=needs,
    facts=facts,
    label=lambda options: f"sleeping_stack {options.depth}x{options.width}",
)
