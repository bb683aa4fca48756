"""What the registries promise about a cell: its parameters and what its strategy sends."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.config.precision import parameter_dtype
from stepscope.core.errors import Unavailable, UsageError
from stepscope.datasets import REGISTRY as DATASETS
from stepscope.records.cell import CellSpec
from stepscope.records.plan import Setting
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY as WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """num_parameters: trainable elements of the model. comm_bytes_per_step: payload of one rank's optimizer
    step.
    """

    num_parameters: int
    comm_bytes_per_step: int


def plan_of(spec: CellSpec) -> Planned | Unavailable:
    """Parameters and payload bytes per rank and optimizer step of a cell, from its workload's and strategy's
    promise.

    Payload: the sum over the collectives of the strategy's ``comm_plan`` of the bytes passed in. Nothing is
    run and no file is read. Unavailable where a plugin is not installed here or refuses the cell's options.
    """
    try:
        workload, dataset = WORKLOADS.load(spec.workload), DATASETS.load(spec.dataset)
        strategy = STRATEGIES.load(spec.strategy)
        model = workload.options.model_validate(dict(spec.model))
        data_options = dataset.options.model_validate(dict(spec.dataset_options))
        options = strategy.options.model_validate(dict(spec.strategy_options))
        needs = dataset.resolve(data_options, workload.needs(model))
        facts = workload.facts(model, needs, parameter_dtype(spec.precision))
    except (UsageError, ValueError) as error:  # ValueError: pydantic refuses the options
        return Unavailable(f"no plan for cell {spec.cell_id}: {error}")
    setting = Setting(
        device=spec.device,
        backend=spec.backend,
        world_size=spec.world_size,
        precision=spec.precision,
        optimizer=spec.optimizer,
        accumulation=spec.accumulation,
    )
    return Planned(
        num_parameters=facts.num_parameters,
        comm_bytes_per_step=sum(op.size_bytes for op in strategy.comm_plan(facts, setting, options)),
    )
