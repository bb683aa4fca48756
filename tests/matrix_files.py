"""Plugins of its own, so that these tests do not depend on the installed plugins."""

from __future__ import annotations

from typing import Any, Literal
from unittest.mock import patch

import pytest
from pydantic import Field, model_validator

from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.datasets import Dataset
from stepscope.matrix.catalog import FAMILIES
from stepscope.matrix.checked import Matrix, build_matrix
from stepscope.matrix.overrides import Override, apply_overrides
from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds
from stepscope.store.yaml_loader import parse_yaml
from stepscope.strategies import Strategy
from stepscope.workloads import Workload


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


def _resolve(_: object, needs: InputNeeds) -> InputNeeds:
    if needs.kind == "tokens":
        raise UsageError("digits are not text")
    return needs


def _workload(key: str, options: type[OptionsModel], kind: Literal["features", "tokens"], *losses: str) -> Workload:
    return Workload(
        key=key, summary="", options=options, needs=lambda _: InputNeeds(kind=kind), label=str, losses=losses,
        facts=None,  # type: ignore[arg-type]
    )  # fmt: skip


def _dataset(key: str, options: type[OptionsModel], resolve: Any) -> Dataset:
    nothing: Any = None
    return Dataset(
        key=key, summary="", options=options, resolve=resolve, locate=nothing, digest=nothing, prepare=nothing
    )


def _strategy(key: str, options: type[OptionsModel]) -> Strategy:
    nothing: Any = None
    return Strategy(key=key, summary="", options=options, requires=nothing, comm_plan=nothing, memory_plan=nothing)


WORKLOADS = {
    "net": _workload("net", Net, "features", "ce", "mse"),
    "reader": _workload("reader", Reader, "tokens", "ce"),
}
STRATEGIES = {key: _strategy(key, kind) for key, kind in (("single", Nothing), ("naive", Flat), ("ddp", Buckets))}
DATASETS = {"noise": _dataset("noise", Noise, lambda _, needs: needs), "digits": _dataset("digits", Nothing, _resolve)}
PLUGINS: dict[str, Registry[Any]] = {
    "model": Registry("tests", "WORKLOAD", "workload", table=WORKLOADS),
    "strategy_options": Registry("tests", "STRATEGY", "strategy", table=STRATEGIES),
    "dataset_options": Registry("tests", "DATASET", "dataset", table=DATASETS),
}


@patch.dict(FAMILIES, PLUGINS)
def build(text: str, *overrides: Override) -> Matrix:
    """Text and overrides to a checked matrix."""
    document = apply_overrides(parse_yaml(text, source="m.yaml"), overrides)
    return build_matrix(document, name="m")


def refused(text: str, *overrides: Override) -> list[str]:
    """What is wrong with it, a line each."""
    with pytest.raises(UsageError) as caught:
        build(text, *overrides)
    return [line.strip() for line in caught.value.what.splitlines()[1:]]
