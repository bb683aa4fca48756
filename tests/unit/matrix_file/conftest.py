"""A vocabulary of its own, so that these tests do not depend on the installed plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from pydantic import Field, model_validator

from stepscope.matrix.catalog import Family, Vocabulary
from stepscope.matrix.checked import Matrix, build_matrix
from stepscope.matrix.overrides import Override, apply_overrides
from stepscope.records.options import OptionsModel
from stepscope.store.yaml_loader import parse_yaml


class Net(OptionsModel):
    size: Literal["tiny", "small"] = "small"
    layers: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _one(self) -> Net:
        if self.layers == ():
            raise ValueError("layers must not be empty")
        return self


class Reader(OptionsModel):
    d_model: int = Field(default=8, ge=1)


class Noise(OptionsModel):
    samples: int = Field(default=64, ge=1)


class Nothing(OptionsModel):
    pass


class Buckets(OptionsModel):
    bucket_cap_mb: float | None = Field(default=None, gt=0)
    hook: Literal["none", "fp16"] = "none"


class Flat(OptionsModel):
    flat: bool = False


WORKLOADS = {"net": Net, "reader": Reader}
STRATEGIES = {"single": Nothing, "naive": Flat, "ddp": Buckets}
DATASETS = {"noise": Noise, "digits": Nothing}


def _misfit(workload: str, model: OptionsModel, dataset: str, options: OptionsModel) -> str | None:
    del model, options
    return "digits are not text" if (workload, dataset) == ("reader", "digits") else None


VOCABULARY = Vocabulary(
    workloads=Family(kind="workload", names=tuple(WORKLOADS), options=WORKLOADS.__getitem__),
    strategies=Family(kind="strategy", names=tuple(STRATEGIES), options=STRATEGIES.__getitem__),
    datasets=Family(kind="dataset", names=tuple(DATASETS), options=DATASETS.__getitem__),
    losses=lambda workload: ("ce", "mse") if workload == "net" else ("ce",),
    misfit=_misfit,
)

Build = Callable[..., Matrix]


@pytest.fixture
def build() -> Build:
    """Text and overrides to a checked matrix."""

    def build(text: str, *overrides: Override) -> Matrix:
        document = apply_overrides(parse_yaml(text, source="m.yaml"), overrides)
        return build_matrix(document, VOCABULARY, name="m")

    return build
