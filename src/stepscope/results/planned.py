"""What the registries declare about a cell: its parameters and what its strategy sends."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable, UsageError
from stepscope.predict.specs import specs_of
from stepscope.records.cell import CellSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """num_parameters: trainable elements of the model. comm_bytes_per_step: payload of one rank's optimizer
    step.
    """

    num_parameters: int
    comm_bytes_per_step: int


def plan_of(spec: CellSpec) -> Planned | Unavailable:
    """Parameters and payload bytes per rank and optimizer step of a cell, from its workload's and strategy's
    specs.

    Payload: the sum over the collectives of the strategy's ``comm_plan`` of the bytes passed in. Nothing is
    run and no file is read. Unavailable where a plugin is not installed here or refuses the cell's options.
    """
    try:
        specs = specs_of(spec)
    except (UsageError, ValueError) as error:  # ValueError: pydantic refuses the options
        return Unavailable(f"no plan for cell {spec.cell_id}: {error}")
    return Planned(num_parameters=specs.facts.num_parameters, comm_bytes_per_step=specs.comm_bytes_per_step)
