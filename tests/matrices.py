"""Plugins of its own, so that these tests do not depend on the installed plugins."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from pydantic import Field

from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.datasets import Dataset
from stepscope.matrix.catalog import FAMILIES
from stepscope.matrix.checked import Matrix
from stepscope.matrix.expand import PlannedCell, expand
from stepscope.matrix.load import matrix_of
from stepscope.matrix.machine import Machine
from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, InputNeeds, MemoryPlan, ModelFacts, ParameterFact, Setting
from stepscope.store.yaml_loader import parse_yaml
from stepscope.strategies import Strategy
from stepscope.workloads import Workload

CPU = Machine(num_gpus=0, usable_cores=2, gloo=True, nccl=False, no_gpu_reason="no driver")
GPUS = Machine(num_gpus=4, usable_cores=32, gloo=True, nccl=True, compute_capability="9.0")


class Net(OptionsModel):
    width: int = Field(default=8, ge=1)
    depth: int = Field(default=4, ge=1)
    size: str = "plain"


class Noise(OptionsModel):
    samples: int = 64


class Nothing(OptionsModel):
    pass


class Buckets(OptionsModel):
    bucket_cap_mb: float = 25.0
    static_graph: bool = False


def _facts(options: Any, data: InputNeeds, dtype: str) -> ModelFacts:
    del data
    numel = options.width**2
    parameters = tuple(ParameterFact(name=f"w{i}", numel=numel, dtype=dtype) for i in range(options.depth))
    return ModelFacts(
        parameters=parameters,
        ready_order=tuple(reversed(range(options.depth))),
        forward_flops_per_sample=2 * numel * options.depth,
    )


def _one_each(facts: ModelFacts, setting: Setting, options: Any) -> tuple[CommOp, ...]:
    del setting, options
    return tuple(
        CommOp(op="all_reduce", numel=p.numel, dtype=p.dtype, phase="backward", members=(p.name,))
        for p in facts.parameters
    )


def _buckets(facts: ModelFacts, setting: Setting, options: Any) -> tuple[CommOp, ...]:
    """A cap of k MiB holds k parameters, however small they are."""
    del setting
    names = [facts.parameters[i].name for i in facts.ready_order]
    size = int(options.bucket_cap_mb)
    return tuple(
        CommOp(op="all_reduce", numel=1, dtype="float32", phase="backward", members=tuple(names[i : i + size]))
        for i in range(0, len(names), size)
    )


def _memory(facts: ModelFacts, setting: Setting, options: Any) -> MemoryPlan:
    del facts, setting, options
    return MemoryPlan(parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0, communication_bytes=0)


def _static(facts: ModelFacts, setting: Setting, options: Any) -> str | None:
    del facts
    return "static_graph with accumulation" if options.static_graph and setting.accumulation > 1 else None


def _strategy(key: str, schema: type[OptionsModel], plan: Any, requires: Any = None, **more: Any) -> Strategy:
    return Strategy(
        key=key,
        summary=key,
        options=schema,
        requires=requires or (lambda *_: None),
        comm_plan=plan,
        memory_plan=_memory,
        **more,
    )


STRATEGIES = {
    "single": _strategy("single", Nothing, lambda *_: (), collective=False),
    "naive": _strategy("naive", Nothing, _one_each),
    "ddp": _strategy("ddp", Buckets, _buckets, _static),
}
WORKLOADS = {
    "net": Workload(
        key="net",
        summary="net",
        options=Net,
        needs=lambda _: InputNeeds(kind="features"),
        facts=_facts,
        label=lambda _: "net",
    )
}


def _resolve(options: Any, needs: InputNeeds) -> InputNeeds:
    if options.samples == 13:
        raise UsageError("thirteen does not fit", fix="use another number")
    return needs


DATASETS = {
    "noise": Dataset(
        key="noise",
        summary="noise",
        options=Noise,
        resolve=_resolve,
        locate=lambda *_: {},
        digest=lambda options, _: f"noise {options.samples}",
        prepare=lambda *_: None,  # type: ignore[arg-type, return-value]
    )
}

PLUGINS: dict[str, Registry[Any]] = {
    "model": Registry("tests", "WORKLOAD", "workload", table=WORKLOADS),
    "strategy_options": Registry("tests", "STRATEGY", "strategy", table=STRATEGIES),
    "dataset_options": Registry("tests", "DATASET", "dataset", table=DATASETS),
}

HEAD = "version: 1\nbase: {workload: net, dataset: noise, global_batch: 48, steps: 10}\n"


@patch.dict(FAMILIES, PLUGINS)
def read(body: str, *overrides: str, head: str = HEAD) -> Matrix:
    """The text of a matrix below its base, and overrides, to a checked matrix."""
    return matrix_of(parse_yaml(head + body, source="m.yaml"), name="m", overrides=overrides)


def plan(body: str, *overrides: str, machine: Machine = CPU) -> tuple[PlannedCell, ...]:
    """The text of a matrix below its base, and overrides, to planned cells on a machine (two cores by default)."""
    return expanded(read(body, *overrides), machine=machine, digest_of=lambda key, options: f"{key} {options}")


@patch.dict(FAMILIES, PLUGINS)
def expanded(matrix: Matrix, **how: Any) -> tuple[PlannedCell, ...]:
    """As ``expand``, with these plugins."""
    return expand(matrix, **how)
